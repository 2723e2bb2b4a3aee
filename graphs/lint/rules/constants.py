"""Inputs whose numbers the parser has to know: axes and the like."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables.operator_table import OperatorTable
from snapexport.graphs.lint.view import GraphView, has

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
_INITIALIZERS = dict.fromkeys(_REDUCTIONS.split(), (1, "axes")) | {"Dropout": (2, "training_mode")}
_KNOWN = {
    "CumSum": (1, "axis"),
    "OneHot": (1, "depth"),
    "Squeeze": (1, "axes"),
    "Unsqueeze": (1, "axes"),
}
"""Enough if they follow from shapes and constants."""


def known_inputs(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """An input that has to be a constant, and isn't."""
    if node.op_type in _INITIALIZERS:
        (index, what), is_known = _INITIALIZERS[node.op_type], view.is_weight
    elif node.op_type in _KNOWN:
        (index, what), is_known = _KNOWN[node.op_type], view.is_fixed
    else:
        return
    if has(node.input, index) and not is_known(node.input[index]):
        yield Problem(
            "constant-input",
            f"{what} of {node.op_type} ({node.input[index]}) must be a constant",
            "make it an initializer",
            table.source,
        )
