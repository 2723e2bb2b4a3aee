"""Tables of the operators that the ONNX parser of each TensorRT version takes, and on which types.

An operator that a table lacks is not supported. Restrictions beyond types are in `rules/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from snapexport.contract.targets import TARGETS, Target
from snapexport.errors import UserError

FLOATS = "FP32 FP16 BF16"
INTS = "INT32 INT64"


@dataclass(frozen=True)
class OperatorTable:
    """One version of TensorRT's ONNX parser.

    opsets: lowest and highest. types: operator -> types that its main input may have. own:
    TensorRT's operators outside of ONNX. relaxed: rules that it does not have.
    """

    version: str
    source: str
    opsets: tuple[int, int]
    types: Mapping[str, frozenset[str]]
    own: frozenset[str]
    relaxed: frozenset[str] = frozenset()


def typed(groups: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """{"TYPE TYPE": "OPERATOR OPERATOR"} -> {operator: its types}."""
    return {
        operator: frozenset(types.split())
        for types, operators in groups.items()
        for operator in operators.split()
    }


_GROUPS = {
    FLOATS: """
        Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip Conv
        ConvTranspose Cos Cosh CumSum Dropout Einsum Elu Erf Exp Floor GRU Gemm GlobalAveragePool
        GlobalLpPool GlobalMaxPool GroupNormalization HardSigmoid HardSwish Hardmax ImageScaler
        InstanceNormalization IsInf LRN LSTM LayerNormalization LeakyRelu Log LogSoftmax
        LpNormalization LpPool MatMul MaxPool MeanVarianceNormalization PRelu ParametricSoftplus
        QuantizeLinear RMSNormalization RNN RandomNormal RandomNormalLike RandomUniform
        RandomUniformLike Reciprocal Resize RotaryEmbedding Round ScaledTanh Scan Selu Sigmoid Sin
        Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Upsample""",
    f"{FLOATS} {INTS}": """
        Abs Add ArgMax ArgMin DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual
        Max Min Mod Mul Neg Pad Pow Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
        ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Scatter ScatterElements
        ScatterND Shrink Sign SpaceToDepth Sub Sum TopK""",
    f"{FLOATS} {INTS} BOOL": """
        Concat Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop OneHot
        Reshape ReverseSequence Shape Size Slice Split Squeeze Tile Transpose Trilu Unsqueeze
        Where""",
    f"{FLOATS} {INTS} UINT8 BOOL": "Cast CastLike",
    f"{FLOATS} {INTS} FP8 FP4 INT4 BOOL": "Constant ConstantOfShape",
    f"{FLOATS} {INTS} INT8": "Gelu",
    f"{FLOATS} {INTS} FP8": "Mean",
    f"{FLOATS} INT8 FP8": "Attention",
    f"{FLOATS} INT32": "TensorScatter",
    "INT8 FP8 FP4 INT4": "DequantizeLinear",
    "FP32 FP16": """
        BlackmanWindow DeformConv GridSample HammingWindow HannWindow Mish NonMaxSuppression
        NonZero RoiAlign""",
    "FP32": "STFT",
    "BOOL": "And Not Or Xor",
}
"""From docs/operators.md of github.com/onnx/onnx-tensorrt at version 10.15."""

_OWN = """
    TRT_FP8QuantizeLinear TRT_FP8DequantizeLinear TRT_INT4QuantizeLinear TRT_INT4DequantizeLinear"""
"""From onnxOpCheckers.cpp of github.com/onnx/onnx-tensorrt."""

TENSORRT_10_15 = OperatorTable(
    version="10.15",
    source="onnx-tensorrt, docs/operators.md of TensorRT 10.15",
    opsets=(9, 24),
    types=typed(_GROUPS),
    own=frozenset(_OWN.split()),
)

_NEW_OWN = {
    *("TRT_Attention", "TRT_KVCacheUpdate", "TRT_MoE", "TRT_QuantizedAttention"),
    "DistCollective",
}

TENSORRT_11_0 = OperatorTable(
    version="11.0",
    source="onnx-tensorrt, docs/operators.md of TensorRT 11.0",
    opsets=(9, 24),
    types=typed(_GROUPS) | typed({FLOATS: "Swish"}),
    own=TENSORRT_10_15.own | _NEW_OWN,
)
"""From docs/operators.md and docs/TRT_custom_ops.md of github.com/onnx/onnx-tensorrt at commit
2f3fa349247d9ff52d7662cb995c82278df31a86. The changelog of 11.1 (github.com/NVIDIA/TensorRT) names
no further operator of ONNX."""

_RTX_TAKES_TOO = typed(
    {
        "INT8": """
            Abs Add Cast CastLike Div Expand Gather GatherElements Greater Less Max Min Mul Neg
            ReduceMax Relu Sign Slice Sub Tile Trilu""",
        "INT8 FP8": "Reshape Transpose",
        "INT8 FP8 UINT8": "Identity",
        "INT8 FP8 BOOL": "Pad",
        "INT8 UINT8 BOOL": "Equal",
        "INT32 INT64": "CumSum",
    }
)
_RTX_LACKS = typed({"INT32": "Relu TensorScatter", "FP32 FP16": "NonZero"})
_NONE: frozenset[str] = frozenset()


def _rtx_types(operator: str, documented: frozenset[str]) -> frozenset[str]:
    """It computes in fp32 what a graph has in fp64."""
    wide = frozenset({"DOUBLE"}) if "FP32" in documented else _NONE
    taken = documented | wide | _RTX_TAKES_TOO.get(operator, _NONE)
    return taken - _RTX_LACKS.get(operator, _NONE)


TENSORRT_RTX_1_7 = OperatorTable(
    version="1.7",
    source="TensorRT for RTX 1.7 itself (tests/rtx/)",
    opsets=(9, 27),
    types={name: _rtx_types(name, types) for name, types in TENSORRT_11_0.types.items()},
    own=TENSORRT_11_0.own,
    relaxed=frozenset(
        {"attention-rank", "attention-mask-rank", "pool-rank", "rotary-positions", "topk-sorted"}
    ),
)
"""The rules of onnx-tensorrt's documents, but for what the library was seen to do differently."""

TABLES: Mapping[Target, tuple[OperatorTable, ...]] = {
    "tensorrt": (TENSORRT_10_15, TENSORRT_11_0),
    "tensorrt-rtx": (TENSORRT_RTX_1_7,),
}
"""Oldest first. Older parsers of TensorRT know neither TensorScatter nor RMSNormalization."""


def table_for(version: str | None, library: Target = "tensorrt") -> OperatorTable:
    """The newest table that is not newer than `version` ("11", "10.15", "11.1.0.106").

    None: the newest table. library: a key of TABLES. Raises UserError for a text that is no
    version, and for a version older than all tables.
    """
    tables = TABLES[library]
    if version is None:
        return tables[-1]
    wanted = _parse(version)
    # "11" means the newest 11.x.
    known = [table for table in tables if _parse(table.version)[: len(wanted)] <= wanted]
    if not known:
        raise UserError(
            f"{TARGETS[library].title} {version} is too old, or was not looked at",
            f"lint for {tables[0].version} or newer",
        )
    return known[-1]


def _parse(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"'{version}' is no version of TensorRT", "write it like 11.0")
    return tuple(map(int, parts))
