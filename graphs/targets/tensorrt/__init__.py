"""The tensorrt target: standard operators alone, in the forms that TensorRT's ONNX parser takes.

Caches are written by TensorScatter (linear, 4-D, from a network input to a network output), masks
are explicit, and no TopK asks for more than TensorRT's layer gives. Calls of our functions stay:
the parser takes the plugin of that name, or the body where no plugin is registered. Which forms
those are, and from where we know, is written down in `graphs/lint/`.
"""

from snapexport.graphs.targets.tensorrt.decomposable import allow_decomposition
from snapexport.graphs.targets.tensorrt.masked_attention import MaskedAttention
from snapexport.graphs.targets.tensorrt.topk_rounds import split_topk

__all__ = ["MaskedAttention", "allow_decomposition", "split_topk"]
