"""Functions whose nodes take attributes from the call: which of them the parser resolves."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto
from onnx.helper import make_function, make_node, make_opsetid

from tests.rtx.small.caches import CACHE, INDEX, SHAPE, UPDATE
from tests.rtx.small.making import F16, F32, I64, Value, model

Named = Iterator[tuple[str, onnx.ModelProto]]
KINDS = {
    "int": AttributeProto.INT,
    "ints": AttributeProto.INTS,
    "float": AttributeProto.FLOAT,
    "floats": AttributeProto.FLOATS,
    "string": AttributeProto.STRING,
}
X: Value = ("x", F32, [1, 2, 16, 64])
Y: Value = ("y", F32, [1, 2, 16, 64])


def referring(
    node: NodeProto,
    attribute: str,
    kind: str,
    value: Any,
    inputs: Sequence[Value] = (X,),
    outputs: Sequence[Value] = (Y,),
    more: Sequence[NodeProto] = (),
    **weights: Any,
) -> onnx.ModelProto:
    """A call of a function of `node` and `more`. The node's attribute is the call's `value`."""
    reference = AttributeProto(name=attribute, ref_attr_name="value", type=KINDS[kind])
    node.attribute.append(reference)
    read = [entry[0] for entry in inputs] + list(weights)
    made = [entry[0] for entry in outputs]
    opsets = [make_opsetid("", 24)]
    body = make_function("mine", "One", read, made, [node, *more], opsets, ["value"])
    call = make_node("One", read, made, domain="mine", value=value)
    return model([call], inputs, outputs, functions=(body,), **weights)


def graphs() -> Named:
    yield from _pools()
    yield from _constants()
    yield from _axes()
    yield from _others()


def _pools() -> Named:
    for pool in ("AveragePool", "MaxPool"):
        node = make_node(pool, ["x"], ["y"], pads=[0, 1, 0, 1])
        named = f"{pool}.kernel_shape by reference"
        yield named, referring(node, "kernel_shape", "ints", [1, 3])
    node = make_node("AveragePool", ["x"], ["y"], kernel_shape=[1, 3])
    yield "pads by reference", referring(node, "pads", "ints", [0, 1, 0, 1])
    node = make_node("AveragePool", ["x"], ["y"], kernel_shape=[1, 3])
    yield "auto_pad by reference", referring(node, "auto_pad", "string", "SAME_UPPER")


def _constants() -> Named:
    add = make_node("Add", ["x", "c"], ["y"])
    as_float = make_node("Cast", ["whole"], ["c"], to=F32)
    whole = make_node("Constant", [], ["whole"])
    yield (
        "Constant.value_int by reference",
        referring(whole, "value_int", "int", 5, more=[as_float, add]),
    )
    constants = {"value_float": ("float", 5.0), "value_floats": ("floats", [5.0])}
    for name, (kind, value) in constants.items():
        node = make_node("Constant", [], ["c"])
        yield f"Constant.{name} by reference", referring(node, name, kind, value, more=[add])
    shape = make_node("Constant", [], ["c"])
    flat: Value = ("y", F32, [32, 64])
    reshape = make_node("Reshape", ["x", "c"], ["y"])
    yield (
        "Constant.value_ints by reference",
        referring(shape, "value_ints", "ints", [32, 64], outputs=[flat], more=[reshape]),
    )


def _axes() -> Named:
    yield (
        "Softmax.axis by reference",
        referring(make_node("Softmax", ["x"], ["y"]), "axis", "int", 1),
    )
    best: list[Value] = [("y", F32, [1, 2, 16, 8]), ("i", I64, [1, 2, 16, 8])]
    topk = make_node("TopK", ["x", "k"], ["y", "i"])
    yield (
        "TopK.axis by reference",
        referring(topk, "axis", "int", 3, outputs=best, k=np.array([8])),
    )
    concat = make_node("Concat", ["x", "x"], ["y"])
    wide: Value = ("y", F32, [1, 2, 16, 128])
    yield "Concat.axis by reference", referring(concat, "axis", "int", 3, outputs=[wide])
    size: Value = ("y", I64, [2])
    shape = make_node("Shape", ["x"], ["y"])
    yield "Shape.start by reference", referring(shape, "start", "int", 2, outputs=[size])
    node = make_node("TensorScatter", ["cache", "update", "index"], ["present"], mode="linear")
    caches = {"inputs": [CACHE, UPDATE, INDEX], "outputs": [("present", F16, SHAPE)]}
    yield "TensorScatter.axis by reference", referring(node, "axis", "int", -2, **caches)


def _others() -> Named:
    transposed: Value = ("y", F32, [1, 2, 64, 16])
    node = make_node("Transpose", ["x"], ["y"])
    yield (
        "Transpose.perm by reference",
        referring(node, "perm", "ints", [0, 1, 3, 2], outputs=[transposed]),
    )
    half: Value = ("y", F16, [1, 2, 16, 64])
    cast = make_node("Cast", ["x"], ["y"])
    yield "Cast.to by reference", referring(cast, "to", "int", F16, outputs=[half])
    relu = make_node("LeakyRelu", ["x"], ["y"])
    yield "LeakyRelu.alpha by reference", referring(relu, "alpha", "float", 0.5)
    gather = make_node("GatherND", ["x", "i"], ["y"])
    places: Value = ("i", I64, [1, 2, 8, 1])
    gathered: Value = ("y", F32, [1, 2, 8, 64])
    ends = {"inputs": [X, places], "outputs": [gathered]}
    yield "GatherND.batch_dims by reference", referring(gather, "batch_dims", "int", 2, **ends)
    tensors: list[Value] = [("x", F16, X[2]), ("k", F16, X[2])]
    for name, kind, value in (("scale", "float", 0.5), ("is_causal", "int", 1)):
        node = make_node("Attention", ["x", "k", "k"], ["y"])
        graph = referring(node, name, kind, value, inputs=tensors, outputs=[half])
        yield f"Attention.{name} by reference", graph
