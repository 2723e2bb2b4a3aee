"""Types and shapes of tensors: 64 bits, whole numbers, bools, sizes that are not fixed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node

from tests.rtx.small.making import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
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
NAMES = {F32: "fp32", F16: "fp16", BF16: "bf16", F64: "fp64", I64: "int64", I32: "int32"}
NAMES |= {INT8: "int8", UINT8: "uint8", FP8: "fp8", BOOL: "bool"}

PLAIN = "Identity Neg Abs Sign Relu Exp Sqrt Sigmoid Softmax Transpose Trilu Not"
OF_TWO = "Add Sub Mul Div Max Min Mod Pow MatMul And Or"
TESTS = "Equal Greater Less"
ROWS: dict[str, Any] = {"i": np.zeros((4, 4), np.int64)}
FURTHER: dict[str, dict[str, Any]] = {
    "Reshape": {"shape": np.array([4, 4])},
    "Expand": {"shape": np.array([4, 4])},
    "Tile": {"repeats": np.array([1, 1])},
    "Slice": {"starts": np.array([0, 0]), "ends": np.array([4, 4])},
    "Pad": {"pads": np.array([0] * 4)},
    "CumSum": {"axis": np.array(1)},
    "Gather": {"i": np.arange(4)},
    "GatherElements": ROWS,
    "ReduceSum": {"axes": np.array([2])},
    "ReduceMax": {"axes": np.array([2])},
}
"""Inputs of operators behind the first one, whose output is like the first one too."""
OPERATORS = (*PLAIN.split(), *OF_TWO.split(), *TESTS.split(), *FURTHER)


def surveyed() -> Iterator[tuple[str, int, onnx.ModelProto]]:
    """(operator, type, graph) for the types that ONNX allows the operator's first input."""
    for operator in OPERATORS:
        schema = onnx.defs.get_schema(operator, 24)
        allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
        for dtype in NAMES:
            if _spelled(dtype) in allowed[schema.inputs[0].type_str]:
                yield operator, dtype, _typed(operator, dtype)


def _spelled(dtype: int) -> str:
    return f"tensor({TensorProto.DataType.Name(dtype).lower()})"


def _typed(operator: str, dtype: int) -> onnx.ModelProto:
    outside, made = F32 if dtype == F64 else dtype, BOOL if operator in TESTS.split() else dtype
    shape = [4, 4, 1] if operator.startswith("Reduce") else [4, 4]
    further, attributes = FURTHER.get(operator, {}), {}
    if operator == "Mod" and dtype not in (I64, I32, INT8, UINT8):
        attributes["fmod"] = 1
    names = ["x"] * (2 if operator in f"{OF_TWO} {TESTS}".split() else 1) + list(further)
    nodes = [make_node(operator, names, ["y"], **attributes)]
    y = ("y", F32 if made == F64 else made, shape)
    return model(
        _inside(nodes, made) if dtype == F64 else nodes, [("x", outside, shape)], [y], **further
    )


def _inside(nodes: list[onnx.NodeProto], made: int) -> list[onnx.NodeProto]:
    """The same in fp64 between casts: inputs and outputs of fp64 are a case of their own."""
    node = nodes[0]
    node.input[:] = ["wide" if name == "x" else name for name in node.input]
    before = make_node("Cast", ["x"], ["wide"], to=F64)
    if made != F64:
        return [before, node]
    node.output[0] = "made"
    return [before, node, make_node("Cast", ["made"], ["y"], to=F32)]


def graphs() -> Named:
    for operator, dtype, graph in surveyed():
        yield f"{operator} of {NAMES[dtype]}", graph
    yield from _casts()
    yield from _choices()
    yield from _largest()
    yield from _sizes()
    yield from _constants()


def _casts() -> Named:
    for dtype in (F64, F16, I64, INT8, UINT8, BOOL, FP8):
        x, y = ("x", F32, [4]), ("y", dtype, [4])
        yield f"Cast to {NAMES[dtype]}", single("Cast", [x], [y], to=dtype)
    yield "an input in fp64", single("Cast", [("x", F64, [4])], [("y", F32, [4])], to=F32)


def _choices() -> Named:
    values: list[Value] = [("c", BOOL, [4]), ("x", F32, [4]), ("z", F32, [4])]
    yield "Where of a bool input", single("Where", values, [("y", F32, [4])])
    places: list[Value] = [("x", F32, [8, 4]), ("i", I32, [2])]
    yield "Gather by int32", single("Gather", places, [("y", F32, [2, 4])])
    table: list[Value] = [("x", BOOL, [8, 4]), ("i", I64, [2])]
    yield "Gather of bool", single("Gather", table, [("y", BOOL, [2, 4])])
    small: list[Value] = [("x", INT8, [8, 4]), ("i", I64, [2])]
    yield "Gather of int8", single("Gather", small, [("y", INT8, [2, 4])])
    hot: dict[str, object] = {"depth": np.array(8), "ends": np.array([0, 1], np.float32)}
    yield "OneHot", single("OneHot", [("i", I64, [4])], [("y", F32, [4, 8])], hot)


def _largest() -> Named:
    for dtype in (I64, F16):
        x, y = ("x", dtype, [4, 4]), ("y", I64, [4, 1])
        yield f"ArgMax of {NAMES[dtype]}", single("ArgMax", [x], [y], axis=1)


def _sizes() -> Named:
    open_ended: list[Value] = [("x", F32, ["n", 4])]
    yield "an open dimension", single("Relu", open_ended, [("y", F32, ["n", 4])])
    yield "an empty tensor", unary("Relu", shape=[0, 4])
    yield "a scalar", unary("Relu", shape=[])
    yield "8 dimensions", unary("Relu", shape=[2] * 8)
    yield "9 dimensions", unary("Relu", shape=[2] * 9)


def _constants() -> Named:
    relu = make_node("Relu", ["x"], ["y"])
    for name, value in (("value_string", "a"), ("value_strings", ["a", "b"])):
        text = make_node("Constant", [], ["s"], **{name: value})
        yield f"a Constant of {name}", model([text, relu], [("x", F32, [4])], [("y", F32, [4])])
    wide = onnx.helper.make_tensor("w", TensorProto.DOUBLE, [4], [1.0] * 4)
    cast, add = make_node("Cast", ["w"], ["c"], to=F32), make_node("Add", ["x", "c"], ["y"])
    yield "a weight in fp64", model([cast, add], [("x", F32, [4])], [("y", F32, [4])], w=wide)
