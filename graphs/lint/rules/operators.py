"""Rules of operators and their types, from the version's table."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables import OperatorTable
from snapexport.graphs.lint.view import GraphView

STANDARD = ("", "ai.onnx")
MOST_DIMENSIONS = 8
_WORKS_ON = {"Where": 1}
"""Index of the main input of operators whose first input is not the main one."""
_MAKES_TYPE = ("Cast", "CastLike", "Constant", "ConstantOfShape")
"""Operators whose output type is checked too."""


def operator(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The table has the operator."""
    if node.op_type in table.own:
        return
    if node.domain not in STANDARD or node.op_type not in table.types:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        yield Problem(
            "operator",
            f"the parser of TensorRT {table.version} has no {name}",
            "build with --target tensorrt, or register a plugin of that name",
            table.source,
        )


def types(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The operator takes its main input's type. Networks are strongly typed: no implicit cast."""
    taken = table.types.get(node.op_type)
    if taken is None or node.domain not in STANDARD:
        return
    for name in _typed(node):
        kind = view.tensor(name).type
        if kind is not None and kind not in taken:
            yield Problem(
                "type",
                f"{node.op_type} does not take {kind} ({name})",
                f"cast to one of {', '.join(sorted(taken))}",
                table.source,
            )


def inferred(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """ONNX can infer the outputs. The other rules would pass a tensor of unknown type and shape."""
    if node.domain not in STANDARD or node.op_type not in table.types:
        return
    ends = (node.input, node.output)
    inputs, outputs = ([view.tensor(name) for name in names if name] for names in ends)
    if all(t.is_known for t in inputs) and not all(t.is_known for t in outputs):
        yield Problem(
            "onnx",
            f"ONNX cannot infer type and shape of {node.op_type}'s outputs from its inputs",
            "make the graph pass onnx.checker.check_model(full_check=True) first",
            "onnx.shape_inference",
        )


def rank(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """No tensor has more than MOST_DIMENSIONS."""
    for name in (*node.input, *node.output):
        found = view.tensor(name).rank or 0
        if found > MOST_DIMENSIONS:
            yield Problem(
                "rank",
                f"{name} has {found} dimensions, and TensorRT takes at most {MOST_DIMENSIONS}",
                "reshape it",
                "NvInfer.h of TensorRT 11.1, Dims::MAX_DIMS",
            )


def _typed(node: NodeProto) -> list[str]:
    names = list(node.output[:1]) if node.op_type in _MAKES_TYPE else []
    index = _WORKS_ON.get(node.op_type, 0)
    return names + ([] if node.op_type == "ConstantOfShape" else list(node.input[index:][:1]))
