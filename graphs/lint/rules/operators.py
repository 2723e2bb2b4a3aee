"""Which operators there are, and on which types."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables.operator_table import OperatorTable
from snapexport.graphs.lint.view import GraphView

STANDARD = ("", "ai.onnx")
_WORKS_ON = {"Where": 1}
"""The input that carries the data, where it isn't the first."""
_MAKES_TYPE = ("Cast", "CastLike", "Constant", "ConstantOfShape")
"""What is written matters here, not only what is read."""


def operator(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """An operator that the parser does not know stops it, unless a plugin has its name."""
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
    """Networks are strongly typed: nothing is cast on the way."""
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
    """Where ONNX's own inference stops, the other rules would see nothing wrong."""
    if node.domain not in STANDARD or node.op_type not in table.types:
        return
    ends = (node.input, node.output)
    inputs, outputs = ([view.tensor(name) for name in names if name] for names in ends)
    if all(one.is_known for one in inputs) and not all(one.is_known for one in outputs):
        yield Problem(
            "onnx",
            f"type and shape of what {node.op_type} writes do not follow from what it reads",
            "make it pass onnx.checker.check_model(full_check=True) first",
            "onnx.shape_inference",
        )


def _typed(node: NodeProto) -> list[str]:
    names = list(node.output[:1]) if node.op_type in _MAKES_TYPE else []
    index = _WORKS_ON.get(node.op_type, 0)
    return names + ([] if node.op_type == "ConstantOfShape" else list(node.input[index:][:1]))
