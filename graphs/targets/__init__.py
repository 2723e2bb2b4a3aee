"""Target passes: choose the operators of attention and matrix products for each target.

`contract/targets.py` lists what a target can do. No other code compares names of targets.
"""

from collections.abc import Callable

import onnx

from snapexport.contract.targets import Target
from snapexport.graphs.fusions.packed_attention import PackedAttention
from snapexport.graphs.fusions.residual_norm import SkipNorm
from snapexport.graphs.fusions.rotation import OneRotation
from snapexport.graphs.fusions.silu import Silu
from snapexport.graphs.passes.base import Pass
from snapexport.graphs.targets.collectives import Collectives, DistCollectives, add_groups
from snapexport.graphs.targets.composed_linear_attention import ComposedLinearAttention
from snapexport.graphs.targets.experts import ComposedExperts, MoE
from snapexport.graphs.targets.fewer_nodes import FewerReshapes
from snapexport.graphs.targets.fewer_slots import read_fewer_slots
from snapexport.graphs.targets.group_query_attention import GroupQueryAttention, ValidSlots
from snapexport.graphs.targets.inlined import inline_functions
from snapexport.graphs.targets.latent_attention import LatentAttention
from snapexport.graphs.targets.linear_attention import LinearAttention
from snapexport.graphs.targets.sinks import AttentionBesideExperts, SinkAttention
from snapexport.graphs.targets.standard_attention import StandardAttention
from snapexport.graphs.targets.tensorrt_attention import MaskedAttention
from snapexport.graphs.targets.tensorrt_weights import Dequantized, LinearGemm
from snapexport.graphs.targets.votes import VotedPrefix, VotesInTurn, allow_plugins, split_topk
from snapexport.graphs.targets.weights import BlockGather, FusedMatMul, MatMulNBits

_COMPILED: tuple[Pass, ...] = (
    DistCollectives(),
    ComposedLinearAttention(),
    LatentAttention(),
    Dequantized(),
    AttentionBesideExperts(),
    MaskedAttention(),
    ComposedExperts(every_block=True),
    LinearGemm(),
    VotesInTurn(),
)
"""In the forms that TensorRT's ONNX parser takes: TensorScatter writes caches (linear, 4-D, from a
network input to a network output), masks are explicit, linear layers are Gemm, and every TopK is
within the limit of TensorRT's layer. Calls of our functions stay: the parser takes the body, or the
plugin of that name on request. The parser's documents and TensorRT for RTX's own parser
(tests/rtx/) say which are accepted."""

_PORTABLE: tuple[Pass, ...] = (
    Collectives(),
    ComposedLinearAttention(rows=32),
    LatentAttention(),
    SinkAttention(),
    StandardAttention(),
    ComposedExperts(),
    FewerReshapes(),
)

_FUSIONS: tuple[Pass, ...] = (
    Silu(),
    SkipNorm(),
    FewerReshapes(),
    OneRotation(),
    PackedAttention(),
)
"""The last two find nothing where `TargetCapabilities.one_product` has not the build's dtype."""

TARGET_PASSES: dict[Target, tuple[Pass, ...]] = {
    "portable": _PORTABLE,
    "openvino": (MatMulNBits(openvino=True), BlockGather(), *_PORTABLE),
    "onnxruntime": (
        Collectives(),
        LinearAttention(),
        LatentAttention(prefix=True),
        GroupQueryAttention(),
        ValidSlots(),
        SinkAttention(),
        StandardAttention(),
        MoE(),
        ComposedExperts(),
        FusedMatMul(),
        MatMulNBits(),
        BlockGather(),
        VotedPrefix(),
        *_FUSIONS,
    ),
    "tensorrt": _COMPILED,
    "tensorrt-rtx": _COMPILED,
}
"""Changes to the graph, in this order."""

MODEL_PASSES: dict[Target, tuple[Callable[[onnx.ModelProto], None], ...]] = {
    "portable": (inline_functions,),
    "openvino": (inline_functions, read_fewer_slots),
    "onnxruntime": (read_fewer_slots,),
    "tensorrt": (split_topk, allow_plugins, add_groups),
    # It runs no plugins.
    "tensorrt-rtx": (split_topk, add_groups),
}
"""Changes to the finished model, which includes the bodies of our functions."""
