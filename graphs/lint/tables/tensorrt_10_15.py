"""TensorRT 10.15: facts from docs/operators.md of github.com/onnx/onnx-tensorrt at that version.

What isn't here is not supported. Restrictions beyond types are in `rules/`.
"""

from snapexport.graphs.lint.tables.operator_table import FLOATS, INTS, OperatorTable, typed

GROUPS = {
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

OWN = """
    TRT_FP8QuantizeLinear TRT_FP8DequantizeLinear TRT_INT4QuantizeLinear TRT_INT4DequantizeLinear"""
"""From onnxOpCheckers.cpp of the same repository."""

TABLE = OperatorTable(
    version="10.15",
    source="onnx-tensorrt, docs/operators.md of TensorRT 10.15",
    opsets=(9, 24),
    types=typed(GROUPS),
    own=frozenset(OWN.split()),
)
