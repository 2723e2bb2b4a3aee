"""The tensorrt target: standard operators, in the forms that TensorRT's ONNX parser takes.

TensorScatter writes caches (linear, 4-D, from a network input to a network output), masks are
explicit, linear layers are Gemm, and every TopK is within the limit of TensorRT's layer. Calls of
our functions stay: the parser takes the body, or the plugin of that name on request.
The parser's documents and TensorRT for RTX's own parser (tests/rtx/) say which are accepted.
"""

from snapexport.graphs.targets.tensorrt.masked_attention import MaskedAttention
from snapexport.graphs.targets.tensorrt.votes import VotesInTurn, allow_plugins, split_topk
from snapexport.graphs.targets.tensorrt.weights import Dequantized, LinearGemm

__all__ = [
    "Dequantized",
    "LinearGemm",
    "MaskedAttention",
    "VotesInTurn",
    "allow_plugins",
    "split_topk",
]
