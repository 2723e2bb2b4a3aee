"""Votes, pools, scatters, norms, quantized weights, experts; operators that are not there."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx.helper import make_node, make_tensor

from tests.rtx.small.making import (
    BF16,
    F16,
    F32,
    FP8,
    I32,
    I64,
    INT8,
    UINT8,
    Value,
    model,
    single,
    unary,
)

Named = Iterator[tuple[str, onnx.ModelProto]]


def graphs() -> Named:
    yield from _topk()
    yield from _pools()
    yield from _scatters()
    yield from _computed_inputs()
    yield from _rotary()
    yield from _quantized()
    yield from _norms()
    yield from _experts()
    yield from _unknown()


def topk(k: int, dtype: int = F32, **attributes: Any) -> onnx.ModelProto:
    outputs: list[Value] = [("best", dtype, [1, 2, k]), ("places", I64, [1, 2, k])]
    inputs: list[Value] = [("x", dtype, [1, 2, 16384])]
    return single("TopK", inputs, outputs, {"k": np.array([k])}, **attributes)


def _topk() -> Named:
    for k in (3840, 3841, 4096):
        yield f"TopK of {k:,}", topk(k)
    yield "TopK, unsorted", topk(64, sorted=0)
    yield "TopK, smallest", topk(64, largest=0)
    for name, dtype in (("int64", I64), ("int32", I32), ("fp16", F16), ("bf16", BF16)):
        yield f"TopK of {name}", topk(64, dtype)
    ends: list[Value] = [("best", F32, [1, 2, "K"]), ("places", I64, [1, 2, "K"])]
    inputs: list[Value] = [("x", F32, [1, 2, 1024]), ("k", I64, [1])]
    yield "TopK of unknown size", single("TopK", inputs, ends)


def _pools() -> Named:
    wide = {"kernel_shape": [1, 3], "dilations": [1, 2], "pads": [0, 2] * 2}
    row = {"kernel_shape": [1, 7], "pads": [0, 3] * 2}
    for pool in ("AveragePool", "MaxPool"):
        yield f"{pool} over 1 of 2", unary(pool, **row)
        line = unary(pool, shape=[1, 2, 64], kernel_shape=[7], pads=[3, 3])
        yield f"{pool} over 1 of 1", line
        yield f"{pool}, dilated", unary(pool, **wide)
        yield f"{pool} in bf16", unary(pool, BF16, **row)
    yield "AveragePool that counts its pads", unary("AveragePool", **row, count_include_pad=1)
    outputs: list[Value] = [("y", F32, [1, 2, 4, 64]), ("i", I64, [1, 2, 4, 64])]
    yield "MaxPool with indices", single("MaxPool", [("x", F32, [1, 2, 4, 64])], outputs, **row)


def _scatters() -> Named:
    for reduction in ("none", "add"):
        for operator, shape in (("ScatterND", [2, 1]), ("ScatterElements", [2])):
            values: list[Value] = [("x", F32, [8]), ("i", I64, shape), ("u", F32, [2])]
            graph = single(operator, values, [("y", F32, [8])], reduction=reduction)
            yield f"{operator}{' that adds' if reduction == 'add' else ''}", graph
    values = [("x", F16, [1, 2, 64, 16]), ("i", I64, [1, 2, 8, 1])]
    gathered: Value = ("y", F16, [1, 2, 8, 16])
    yield "GatherND in two batch dimensions", single("GatherND", values, [gathered], batch_dims=2)
    values = [("x", F32, [2, 64]), ("i", I32, [2, 8])]
    yield "GatherElements by int32", single("GatherElements", values, [("y", F32, [2, 8])], axis=1)


def _computed_inputs() -> Named:
    """Sizes and axes that are inputs of the network."""
    ends = {"zero": np.array(0), "one": np.array(1)}
    count = make_node("Range", ["zero", "n", "one"], ["y"])
    yield "Range up to an input", model([count], [("n", I64, [])], [("y", I64, ["N"])], **ends)
    square: Value = ("x", F32, [4, 4])
    axes: Value = ("a", I64, [1])
    yield "ReduceSum over computed axes", single("ReduceSum", [square, axes], [("y", F32, None)])
    column: Value = ("x", F32, [4, 1])
    yield "Squeeze of computed axes", single("Squeeze", [column, axes], [("y", F32, None)])
    values: list[Value] = [square, ("a", I64, [])]
    yield "CumSum along a computed axis", single("CumSum", values, [("y", F32, [4, 4])])
    values = [("x", F32, [1, 8]), ("s", I64, [2])]
    yield "Expand to a computed shape", single("Expand", values, [("y", F32, ["A", "B"])])
    values = [("x", F32, [8]), ("e", I64, [1])]
    cut = make_node("Slice", ["x", "zero", "e"], ["y"])
    yield "Slice up to an input", model([cut], values, [("y", F32, ["N"])], zero=np.array([0]))
    yield "NonZero", single("NonZero", [("x", F32, [8])], [("y", I64, [1, "N"])])


def _rotary() -> Named:
    tables = dict.fromkeys(("cos", "sin"), np.zeros((16, 32), np.float16))
    x, y = ((name, F16, [1, 2, 4, 64]) for name in "xy")
    for name, kind in (("int32", I32), ("int64", I64)):
        node = make_node("RotaryEmbedding", ["x", "cos", "sin", "p"], ["y"])
        graph = model([node], [x, ("p", kind, [1, 4])], [y], **tables)
        yield f"RotaryEmbedding, {name} positions", graph
    values: list[Value] = [x, ("cos", F16, [1, 4, 32]), ("sin", F16, [1, 4, 32])]
    yield "RotaryEmbedding without positions", single("RotaryEmbedding", values, [y])
    interleaved = single("RotaryEmbedding", values, [y], interleaved=1)
    yield "RotaryEmbedding, interleaved", interleaved
    half: list[Value] = [x, ("cos", F16, [1, 4, 16]), ("sin", F16, [1, 4, 16])]
    partial = single("RotaryEmbedding", half, [y], rotary_embedding_dim=32, num_heads=2)
    yield "RotaryEmbedding of half a head", partial


def _quantized() -> Named:
    x, y = ("x", INT8, [8]), ("y", F32, [8])
    one: dict[str, Any] = {"s": np.float32(0.5)}
    yield "DequantizeLinear", single("DequantizeLinear", [x], [y], one)
    points = {name: one | {"z": np.int8(n)} for name, n in (("zero", 0), ("3", 3))}
    for name, weights in points.items():
        yield f"a zero point of {name}", single("DequantizeLinear", [x], [y], weights)
    unsigned = one | {"z": np.uint8(0)}
    yield (
        "DequantizeLinear of uint8",
        single("DequantizeLinear", [("x", UINT8, [8])], [y], unsigned),
    )
    for name, kind, size in (("int8", INT8, 1), ("fp8", FP8, 1)):
        weight = make_tensor("w", kind, [64, 64], b"\x38" * (64 * 64 // size), raw=True)
        yield f"a weight in {name}", _product(weight, np.ones(64, np.float32), axis=0)
    for name, kind in (("int4", onnx.TensorProto.INT4), ("fp4", onnx.TensorProto.FLOAT4E2M1)):
        weight = make_tensor("w", kind, [64, 64], b"\x11" * (64 * 32), raw=True)
        scales = np.ones((64, 2), np.float32)
        yield f"a weight in {name}, blocks of 32", _product(weight, scales, axis=1, block_size=32)


def _product(weight: onnx.TensorProto, scale: Any, **attributes: Any) -> onnx.ModelProto:
    """x . dequantized weight."""
    nodes = [
        make_node("DequantizeLinear", ["w", "s"], ["d"], **attributes),
        make_node("MatMul", ["x", "d"], ["y"]),
    ]
    return model(nodes, [("x", F32, [4, 64])], [("y", F32, [4, 64])], w=weight, s=scale)


def _norms() -> Named:
    gain = {"g": np.ones(8, np.float32)}
    x, y = ("x", F32, [2, 8]), ("y", F32, [2, 8])
    yield "RMSNormalization", single("RMSNormalization", [x], [y], gain)
    yield "LayerNormalization", single("LayerNormalization", [x], [y], gain)
    nodes = [make_node("LayerNormalization", ["x", "g"], ["y", "mean"])]
    mean: Value = ("mean", F32, [2, 1])
    yield "LayerNormalization, 2 outputs", model(nodes, [x], [y, mean], **gain)
    yield "Gelu", unary("Gelu", approximate="tanh")
    yield "Swish of opset 24", unary("Swish")


def _experts() -> Named:
    """Experts as products of gathered matrices, and as ONNX Runtime's own operators."""
    gather = make_node("Gather", ["w", "i"], ["chosen"], axis=0)
    product = make_node("MatMul", ["x", "chosen"], ["y"])
    values: list[Value] = [("x", F16, [2, 1, 64]), ("i", I64, [2])]
    weights = {"w": np.zeros((8, 64, 32), np.float16)}
    yield "gathered experts", model([gather, product], values, [("y", F16, [2, 1, 32])], **weights)
    operands: list[Value] = [("x", F16, [2, 64]), ("r", F16, [2, 8])]
    matrices = {"up": np.zeros((8, 32, 64), "e"), "down": np.zeros((8, 64, 32), "e")}
    for operator, read in (
        ("MoE", ["x", "r", "up", "", "down"]),
        ("QMoE", ["x", "r", "up", "", "", "down"]),
    ):
        node = make_node(operator, read, ["y"], domain="com.microsoft", k=2)
        yield operator, model([node], operands, [("y", F16, [2, 64])], **matrices)


def _unknown() -> Named:
    yield "Det", single("Det", [("x", F32, [4, 4])], [("y", F32, [])])
    yield "Unique", single("Unique", [("x", F32, [4])], [("y", F32, ["N"])])
    yield "an operator of nobody's", unary("Nothing", domain="acme")
    bits = np.zeros((64, 2, 16), np.uint8)
    node = make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=64)
    node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in NBITS.items())
    scales = np.ones((64, 2), np.float32)
    ends: tuple[Value, Value] = (("x", F32, [4, 64]), ("y", F32, [4, 64]))
    yield "MatMulNBits", model([node], ends[:1], ends[1:], w=bits, s=scales)
    for opset in (8, 9, 23, 25, 26, 27):
        yield f"opset {opset}", unary("Relu", opset=opset)


NBITS = {"bits": 4, "block_size": 32}
