"""TopK: the limit that shows only when the engine is built."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables.operator_table import OperatorTable
from snapexport.graphs.lint.view import GraphView, attribute

MOST = 3840


def size(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Beyond the limit, or not to be seen."""
    if node.op_type != "TopK":
        return
    k = _size(node, view)
    if k is None or k > MOST:
        yield Problem(
            "topk-size",
            f"K is {'not a constant' if k is None else k}, and TensorRT gives at most {MOST}",
            "build with --target tensorrt (rounds of smaller ones), lower --K or --eligible, or "
            "use the plugin",
            "NvInfer.h of TensorRT 11.1, ITopKLayer::setK",
        )


def _size(node: NodeProto, view: GraphView) -> int | None:
    """K as a number, or what the output has along the axis."""
    k = view.numbers(node.input[1])
    if k is not None:
        return int(k.reshape(-1)[0])
    shape = view.tensor(node.output[0] or node.output[1]).shape
    return shape[attribute(node, "axis", -1)] if shape else None


def order(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """TensorRT's layer always sorts."""
    if node.op_type == "TopK" and not attribute(node, "sorted", 1):
        yield Problem("topk-sorted", "sorted is 0", "set it to 1", table.source)
