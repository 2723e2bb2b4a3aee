"""Restrictions of single operators."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables.operator_table import OperatorTable
from snapexport.graphs.lint.view import GraphView, attribute, has

_POOLS = ("AveragePool", "MaxPool", "LpPool")
_UNSUPPORTED_CONSTANTS = ("sparse_value", "value_string", "value_strings")


def pooling(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Over two or three dimensions, undilated."""
    if node.op_type not in _POOLS:
        return
    kernel = attribute(node, "kernel_shape", [])
    if len(kernel) not in (2, 3):
        yield Problem(
            "pool-rank",
            f"{node.op_type} pools over {len(kernel)} dimensions, and must over 2 or 3",
            "unsqueeze: [B, H, N] to [B, H, 1, N] with a kernel of [1, P]",
            table.source,
        )
    if any(dilation != 1 for dilation in attribute(node, "dilations", [])):
        yield Problem("pool-dilation", "dilations are not 1", "leave them out", table.source)


def scatter(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """ScatterND replaces, and nothing else."""
    if node.op_type == "ScatterND" and attribute(node, "reduction", "none") != "none":
        yield Problem(
            "scatter-reduction",
            f"ScatterND with the reduction {attribute(node, 'reduction')} is not supported",
            "use ScatterElements",
            table.source,
        )


def constant(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Numbers, and all of them."""
    for name in _UNSUPPORTED_CONSTANTS if node.op_type == "Constant" else ():
        if attribute(node, name) is not None:
            yield Problem(
                "constant", f"a Constant of {name} is not supported", "use value", table.source
            )


def rotary_embedding(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """position_ids are INT64, or not there at all."""
    if node.op_type != "RotaryEmbedding" or len(node.input) < 4:
        return
    kind = view.tensor(node.input[3]).type
    if not node.input[3] or kind not in ("INT64", None):
        yield Problem(
            "rotary-positions",
            f"position_ids are {kind or 'an empty input'}, and must be INT64 or left out",
            "cast them, or gather cos and sin by position before",
            table.source,
        )


def quantization(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Symmetric: a zero point is zero, and known to be."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or not has(node.input, 2):
        return
    zero_point = view.numbers(node.input[2])
    if zero_point is None or zero_point.any():
        yield Problem(
            "zero-point",
            f"the zero point of {node.op_type} ({node.input[2]}) must be zero",
            "quantize symmetrically, and leave it out",
            table.source,
        )


def single_output(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Of LayerNormalization and MaxPool the first output alone."""
    if node.op_type in ("LayerNormalization", "MaxPool") and any(node.output[1:]):
        yield Problem(
            "first-output",
            f"{node.op_type} has {len(node.output)} outputs: only the first is supported",
            "do without the others",
            table.source,
        )
