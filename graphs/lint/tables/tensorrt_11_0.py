"""TensorRT 11.0: facts from docs/operators.md and docs/TRT_custom_ops.md of
github.com/onnx/onnx-tensorrt at commit 2f3fa349247d9ff52d7662cb995c82278df31a86.

The changelog of 11.1 (github.com/NVIDIA/TensorRT) names no further operator of ONNX.
"""

from snapexport.graphs.lint.tables import tensorrt_10_15
from snapexport.graphs.lint.tables.operator_table import FLOATS, OperatorTable, typed

_NEW_OWN = {"TRT_Attention", "TRT_KVCacheUpdate", "TRT_MoE", "TRT_QuantizedAttention"}

TABLE = OperatorTable(
    version="11.0",
    source="onnx-tensorrt, docs/operators.md of TensorRT 11.0",
    opsets=(9, 24),
    types=typed(tensorrt_10_15.GROUPS) | typed({FLOATS: "Swish"}),
    own=tensorrt_10_15.TABLE.own | _NEW_OWN,
)
