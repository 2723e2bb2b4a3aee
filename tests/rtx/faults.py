"""Small graphs, sound and faulty, of which the lint and the real library each say something.

PYTHONPATH=. python -m tests.rtx.faults    writes docs/reference/lint-agreement.md
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto
from onnx.helper import (
    make_function,
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor_value_info,
)

from snapexport.graphs.lint import lint_model, table_for
from tests.rtx.library import ask

PAGE = Path("docs/reference/lint-agreement.md")
F16, BF16, F32 = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT
F64, I64, I32 = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32
BOOL, INT8 = TensorProto.BOOL, TensorProto.INT8

Value = tuple[str, int, list[int]]


@dataclass(frozen=True)
class Row:
    """One graph. rules: of the lint's findings. library: what the real one said, in a line."""

    name: str
    rules: tuple[str, ...]
    accepted: bool
    library: str

    @property
    def agrees(self) -> bool:
        return self.accepted is not bool(self.rules)


EXPLAINED = {
    "valid lengths of keys": "dropped without a word: invalid cache slots are attended to",
    "a chunk under is_causal": "taken, but row i sees the first i + 1 columns",
    "one row under is_causal": "taken, but the row sees the first column alone",
}
"""Graphs that the library accepts and the lint refuses on purpose."""


def model(
    nodes: list[NodeProto],
    inputs: list[Value],
    outputs: list[Value],
    opset: int = 24,
    functions: tuple[onnx.FunctionProto, ...] = (),
    **weights: Any,
) -> onnx.ModelProto:
    """A graph of `nodes`. weights: its initializers."""
    given, made = (
        [make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)
    )
    tensors = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    graph = make_graph(nodes, "one", given, made, tensors)
    opsets = [make_opsetid("", opset)] + [make_opsetid(f.domain, 1) for f in functions[:1]]
    return make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=11)


def attention(
    query: tuple[int, ...] = (1, 4, 32, 64),
    key: tuple[int, ...] = (1, 2, 32, 64),
    dtype: int = F16,
    mask: Value | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    values: list[Value] = [("q", dtype, list(query)), ("k", dtype, list(key))]
    values.append(("v", dtype, list(key)))
    values += [mask] if mask else []
    node = make_node("Attention", [value[0] for value in values], ["y"], **attributes)
    return model([node], values, [("y", dtype, list(query))])


def unary(operator: str, dtype: int, **attributes: Any) -> onnx.ModelProto:
    node = make_node(operator, ["x"], ["y"], **attributes)
    return model([node], [("x", dtype, [1, 2, 4, 64])], [("y", dtype, [1, 2, 4, 64])])


CACHE: Value = ("cache", F16, [2, 2, 256, 64])
UPDATE: Value = ("update", F16, [2, 2, 1, 64])
INDEX: Value = ("index", I64, [2])
PRESENT: Value = ("present", F16, [2, 2, 256, 64])


def scatter(
    cache_: Value = CACHE, update: Value = UPDATE, index: Value = INDEX, **attributes: Any
) -> onnx.ModelProto:
    inputs = [cache_, update, index]
    node = make_node(
        "TensorScatter",
        [value[0] for value in inputs],
        ["present"],
        **{"axis": -2, "mode": "linear"} | attributes,
    )
    return model([node], inputs, [("present", cache_[1], cache_[2])])


def topk(k: int, dtype: int = F32, **attributes: Any) -> onnx.ModelProto:
    node = make_node("TopK", ["x", "k"], ["best", "places"], **attributes)
    outputs: list[Value] = [("best", dtype, [1, 2, k]), ("places", I64, [1, 2, k])]
    return model([node], [("x", dtype, [1, 2, 16384])], outputs, k=np.array([k]))


def referring(operator: str, attribute: str, kind: int, value: Any, **own: Any) -> onnx.ModelProto:
    """A function of one node, whose attribute refers to the function's."""
    shape = [1, 2, 16, 64]
    inside = make_node(operator, ["x"] * (3 if operator == "Attention" else 1), ["y"], **own)
    inside.attribute.append(onnx.AttributeProto(name=attribute, ref_attr_name="value", type=kind))
    body = make_function("mine", "One", ["x"], ["y"], [inside], [make_opsetid("", 24)], ["value"])
    call = make_node("One", ["x"], ["y"], domain="mine", value=value)
    dtype = F16 if operator == "Attention" else F32
    return model([call], [("x", dtype, shape)], [("y", dtype, shape)], functions=(body,))


def graphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """(name, graph) of each row, in the order of the page."""
    ints, number = onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT
    yield "attention", attention()
    yield "attention in bf16", attention(dtype=BF16)
    yield "attention in fp32", attention(dtype=F32)
    yield "attention in fp64", attention(dtype=F64)
    yield "one row in fp32", attention((1, 4, 1, 64), dtype=F32)
    yield "one row over 24,512 keys", attention((1, 4, 1, 64), (1, 2, 24512, 64))
    yield "one row over 24,576 keys", attention((1, 4, 1, 64), (1, 2, 24576, 64))
    yield "heads of 7", attention((1, 4, 32, 7), (1, 2, 32, 7))
    yield "heads of 8", attention((1, 4, 32, 8), (1, 2, 32, 8))
    yield "heads of 256", attention((1, 4, 32, 256), (1, 2, 32, 256))
    yield "heads of 512", attention((1, 4, 32, 512), (1, 2, 32, 512))
    yield "3 query heads for 2 KV heads", attention((1, 3, 32, 64))
    yield "is_causal", attention(is_causal=1)
    yield "a chunk under is_causal", attention((1, 4, 8, 64), is_causal=1)
    yield "one row under is_causal", attention((1, 4, 1, 64), is_causal=1)
    yield "is_causal and a mask", attention(mask=("m", BOOL, [1, 1, 32, 32]), is_causal=1)
    yield "softcap", attention(softcap=30.0)
    yield "softmax_precision", attention(softmax_precision=1)
    yield "a bool mask", attention(mask=("m", BOOL, [1, 1, 32, 32]))
    yield "a mask in fp16", attention(mask=("m", F16, [1, 1, 32, 32]))
    yield "a mask in fp32 for fp16", attention(mask=("m", F32, [1, 1, 32, 32]))
    yield "a mask in int64", attention(mask=("m", I64, [1, 1, 32, 32]))
    yield "a mask for each head", attention(mask=("m", BOOL, [1, 4, 32, 32]))
    yield "a mask of half the width", attention(mask=("m", BOOL, [1, 1, 32, 16]))
    yield "a 2-D mask", attention(mask=("m", BOOL, [32, 32]))
    yield "a 3-D mask", attention(mask=("m", BOOL, [4, 32, 32]))
    three = attention((1, 32, 256), (1, 32, 128), q_num_heads=4, kv_num_heads=2)
    yield "3-D queries and keys", three
    lengths = attention()
    lengths.graph.input.append(make_tensor_value_info("n", I64, [1]))
    lengths.graph.node[0].input.extend(["", "", "", "n"])
    yield "valid lengths of keys", lengths
    yield "TensorScatter", scatter()
    yield "TensorScatter, circular", scatter(mode="circular")
    yield "TensorScatter on axis 1", scatter(axis=1)
    yield "TensorScatter in fp32", scatter(("cache", F32, CACHE[2]), ("update", F32, UPDATE[2]))
    yield "TensorScatter in int8", scatter(("cache", INT8, CACHE[2]), ("update", INT8, UPDATE[2]))
    yield "an update of another type", scatter(update=("update", F32, UPDATE[2]))
    yield "an int32 index", scatter(index=("index", I32, [2]))
    flat: list[Value] = [("cache", F16, [2, 256, 64]), ("update", F16, [2, 1, 64])]
    yield "a 3-D cache", scatter(*flat)
    twice = scatter()
    second = make_node("TensorScatter", ["cache", "update", "index"], ["again"], axis=-2)
    twice.graph.node.append(second)
    twice.graph.output.append(make_tensor_value_info("again", *PRESENT[1:]))
    yield "a cache written twice", twice
    copied = scatter()
    copied.graph.node.insert(0, make_node("Mul", ["cache", "cache"], ["other"]))
    copied.graph.node[1].input[0] = "other"
    yield "a cache that is no input", copied
    inner = scatter()
    inner.graph.node[0].output[0] = "inner"
    inner.graph.node.append(make_node("Mul", ["inner", "inner"], ["present"]))
    yield "a cache that is no output", inner
    yield "TopK of 3,840", topk(3840)
    yield "TopK of 3,841", topk(3841)
    yield "TopK, unsorted", topk(64, sorted=0)
    yield "TopK of int64", topk(64, I64)
    unknown = topk(64)
    unknown.graph.initializer.pop()
    unknown.graph.input.append(make_tensor_value_info("k", I64, [1]))
    yield "TopK of unknown size", unknown
    ends = model(
        [make_node("Range", ["zero", "n", "one"], ["y"])],
        [("n", I64, [])],
        [("y", I64, ["N"])],  # type: ignore[list-item]
        zero=np.array(0),
        one=np.array(1),
    )
    yield "Range up to an input", ends
    yield "AveragePool over 1 of 2", unary("AveragePool", F32, kernel_shape=[1, 7], pads=[0, 3] * 2)
    line = make_node("AveragePool", ["x"], ["y"], kernel_shape=[7], pads=[3, 3])
    yield (
        "AveragePool over 1 of 1",
        model([line], [("x", F32, [1, 2, 64])], [("y", F32, [1, 2, 64])]),
    )
    wide = {"kernel_shape": [1, 3], "dilations": [1, 2], "pads": [0, 2] * 2}
    yield "AveragePool, dilated", unary("AveragePool", F32, **wide)
    yield (
        "kernel_shape by reference",
        referring("AveragePool", "kernel_shape", ints, [1, 3], pads=[0, 1, 0, 1]),
    )
    yield (
        "pads by reference",
        referring("AveragePool", "pads", ints, [0, 1, 0, 1], kernel_shape=[1, 3]),
    )
    yield "Attention.scale by reference", referring("Attention", "scale", number, 0.5)
    yield "LeakyRelu.alpha by reference", referring("LeakyRelu", "alpha", number, 0.5)
    for operator, shape in (("ScatterND", [2, 1]), ("ScatterElements", [2])):
        node = make_node(operator, ["x", "i", "u"], ["y"], reduction="add")
        values: list[Value] = [("x", F32, [8]), ("i", I64, shape), ("u", F32, [2])]
        yield f"{operator} that adds", model([node], values, [("y", F32, [8])])
    for name, kind in (("int32", I32), ("int64", I64)):
        node = make_node("RotaryEmbedding", ["x", "cos", "sin", "p"], ["y"])
        tables = dict.fromkeys(("cos", "sin"), np.zeros((16, 32), np.float16))
        values = [("x", F16, [1, 2, 4, 64]), ("p", kind, [1, 4])]
        yield (
            f"RotaryEmbedding, {name} positions",
            model([node], values, [("y", F16, [1, 2, 4, 64])], **tables),
        )
    yield (
        "Add of fp64",
        model([make_node("Add", ["x", "x"], ["y"])], [("x", F64, [4])], [("y", F64, [4])]),
    )
    square: list[Value] = [("x", I64, [4, 4])]
    yield (
        "MatMul of int64",
        model([make_node("MatMul", ["x", "x"], ["y"])], square, [("y", I64, [4, 4])]),
    )
    yield "Det", model([make_node("Det", ["x"], ["y"])], [("x", F32, [4, 4])], [("y", F32, [])])
    for opset in (23, 25, 26, 27):
        relu = make_node("Relu", ["x"], ["y"])
        yield f"opset {opset}", model([relu], [("x", F32, [4])], [("y", F32, [4])], opset)
    point = make_node("DequantizeLinear", ["x", "s", "z"], ["y"])
    yield (
        "a zero point of 3",
        model([point], [("x", INT8, [8])], [("y", F32, [8])], s=np.float32(0.5), z=np.int8(3)),
    )
    norm = make_node("LayerNormalization", ["x", "g"], ["y", "mean"])
    yield (
        "LayerNormalization, 2 outputs",
        model(
            [norm],
            [("x", F32, [2, 8])],
            [("y", F32, [2, 8]), ("mean", F32, [2, 1])],
            g=np.ones(8, "f"),
        ),
    )


@cache
def rows() -> tuple[Row, ...]:
    """Every graph, with what the lint and the library say."""
    table = table_for(None, "tensorrt-rtx")
    found = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        for name, graph in graphs():
            onnx.save(graph, path)
            rules = sorted({one.rule for one in lint_model(graph, "graph", table)})
            answer = ask(path, ("8.9",))
            stage = "the process ends" if answer.aborted else "refused by the parser"
            stage = stage if answer.aborted or not answer.parsed else "refused by the builder"
            said = "accepted" if answer.accepted else stage
            found.append(Row(name, tuple(rules), answer.accepted, said))
    return tuple(found)


def page() -> str:
    """The table in Markdown."""
    lines = [
        "# The lint against the real library",
        "",
        "Each row is a small graph. The lint's rules for TensorRT for RTX were applied to it, and",
        "the library's own parser and builder were asked (compute capability 8.9). Where they",
        "differ, the last column says why. `make test-rtx` asks again, and holds this page.",
        "",
        "| graph | TensorRT for RTX | lint | |",
        "|---|---|---|---|",
    ]
    for row in rows():
        rules = ", ".join(f"`{rule}`" for rule in row.rules) or "nothing"
        why = "" if row.agrees else EXPLAINED.get(row.name, "**they differ**")
        lines.append(f"| {row.name} | {row.library} | {rules} | {why} |")
    agreeing = sum(row.agrees for row in rows())
    lines += ["", f"{agreeing} of {len(rows())} agree."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
