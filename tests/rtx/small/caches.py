"""Caches written by TensorScatter."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.helper import make_node, make_tensor_value_info

from tests.rtx.small.making import BF16, BOOL, F16, F32, I32, I64, INT8, Value, model

Named = Iterator[tuple[str, onnx.ModelProto]]

SHAPE = [2, 2, 256, 64]
CACHE: Value = ("cache", F16, SHAPE)
UPDATE: Value = ("update", F16, [2, 2, 1, 64])
INDEX: Value = ("index", I64, [2])


def scatter(
    cache: Value = CACHE, update: Value = UPDATE, index: Value | None = INDEX, **attributes: Any
) -> onnx.ModelProto:
    inputs = [cache, update, *([index] if index else [])]
    options = {"axis": -2, "mode": "linear"} | attributes
    node = make_node("TensorScatter", [value[0] for value in inputs], ["present"], **options)
    return model([node], inputs, [("present", *cache[1:])])


def of_type(dtype: int) -> onnx.ModelProto:
    return scatter(("cache", dtype, SHAPE), ("update", dtype, UPDATE[2]))


def graphs() -> Named:
    yield from _forms()
    yield from _types()
    yield from _places()
    yield from _uses()


def _forms() -> Named:
    yield "TensorScatter", scatter()
    yield "TensorScatter, circular", scatter(mode="circular")
    yield "TensorScatter on axis 1", scatter(axis=1)
    yield "TensorScatter on axis 2", scatter(axis=2)
    yield "TensorScatter of 4 rows", scatter(update=("update", F16, [2, 2, 4, 64]))
    yield "TensorScatter without an index", scatter(index=None)
    flat: Sequence[Value] = [("cache", F16, [2, 256, 64]), ("update", F16, [2, 1, 64])]
    yield "a 3-D cache", scatter(*flat)
    yield "a cache of open length", scatter(("cache", F16, [2, 2, "S", 64]))


def _types() -> Named:
    for name, dtype in (("fp32", F32), ("bf16", BF16), ("int8", INT8), ("int32", I32)):
        yield f"TensorScatter in {name}", of_type(dtype)
    yield "an update of another type", scatter(update=("update", F32, UPDATE[2]))
    yield "an int32 index", scatter(index=("index", I32, [2]))


def _places() -> Named:
    yield "a product as the cache", _from("Mul", "cache", "cache")
    yield "an Identity before the cache", _from("Identity", "cache")
    inner = scatter()
    inner.graph.node[0].output[0] = "inner"
    inner.graph.node.append(make_node("Mul", ["inner", "inner"], ["present"]))
    yield "a cache that is no output", inner


def _from(operator: str, *inputs: str) -> onnx.ModelProto:
    """A cache that another node has made."""
    made = scatter()
    made.graph.node.insert(0, make_node(operator, inputs, ["other"]))
    made.graph.node[1].input[0] = "other"
    return made


def _uses() -> Named:
    twice = scatter()
    again = make_node("TensorScatter", ["cache", "update", "index"], ["again"], axis=-2)
    twice.graph.node.append(again)
    twice.graph.output.append(make_tensor_value_info("again", F16, SHAPE))
    yield "a cache written twice", twice
    read = scatter()
    read.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "axes"))
    read.graph.node.append(make_node("ReduceSum", ["cache", "axes"], ["sum"], keepdims=0))
    read.graph.output.append(make_tensor_value_info("sum", F16, [2, 2, 64]))
    yield "a cache that another node reads too", read
    yield "two caches that are attended to", _attended()


def _attended() -> onnx.ModelProto:
    """A decode step's cache writes and attention."""
    nodes = [
        make_node("TensorScatter", [past, "update", "index"], [present], axis=-2)
        for past, present in (("keys", "new_keys"), ("values", "new_values"))
    ]
    nodes.append(make_node("Attention", ["q", "new_keys", "new_values", "mask"], ["y"], scale=1.0))
    inputs: list[Value] = [("keys", F16, SHAPE), ("values", F16, SHAPE), UPDATE, INDEX]
    query: Value = ("q", F16, [2, 4, 1, 64])
    inputs += [query, ("mask", BOOL, [2, 1, 1, 256])]
    outputs: list[Value] = [("new_keys", F16, SHAPE), ("new_values", F16, SHAPE)]
    return model(nodes, inputs, [*outputs, ("y", *query[1:])])
