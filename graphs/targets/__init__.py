"""The last passes: with which operators attention and matrix products are done on each target."""

from snapexport.contract.manifest import Target
from snapexport.graphs.passes.base import Pass
from snapexport.graphs.targets.fused_matmul import FusedMatMul
from snapexport.graphs.targets.group_query_attention import GroupQueryAttention
from snapexport.graphs.targets.standard_attention import StandardAttention

TARGET_PASSES: dict[Target, tuple[Pass, ...]] = {
    "portable": (StandardAttention(),),
    "onnxruntime": (GroupQueryAttention(), StandardAttention(), FusedMatMul()),
}
"""Each takes what the one before it left."""
