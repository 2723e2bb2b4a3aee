"""The last passes: with which operators attention and matrix products are done on each target."""

from collections.abc import Callable

import onnx

from snapexport.contract.manifest import Target
from snapexport.graphs.passes.base import Pass
from snapexport.graphs.targets.fewer_reshapes import FewerReshapes
from snapexport.graphs.targets.fused_matmul import FusedMatMul
from snapexport.graphs.targets.group_query_attention import GroupQueryAttention
from snapexport.graphs.targets.matmul_nbits import MatMulNBits
from snapexport.graphs.targets.skip_norm import SkipNorm
from snapexport.graphs.targets.standard_attention import StandardAttention
from snapexport.graphs.targets.tensorrt import MaskedAttention, split_topk
from snapexport.graphs.targets.valid_slots import ValidSlots
from snapexport.graphs.targets.voted_prefix import VotedPrefix

TARGET_PASSES: dict[Target, tuple[Pass, ...]] = {
    "portable": (StandardAttention(), FewerReshapes()),
    "onnxruntime": (
        GroupQueryAttention(),
        ValidSlots(),
        StandardAttention(),
        FusedMatMul(),
        MatMulNBits(),
        VotedPrefix(),
        SkipNorm(),
        FewerReshapes(),
    ),
    "tensorrt": (MaskedAttention(),),
}
"""Each takes what the one before it left."""

BODY_PASSES: dict[Target, tuple[Callable[[onnx.ModelProto], None], ...]] = {
    "portable": (),
    "onnxruntime": (),
    "tensorrt": (split_topk,),
}
"""What a target changes in the bodies of our functions, once they stand in the model."""
