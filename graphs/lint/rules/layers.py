"""Rules of single operators."""

from collections.abc import Iterator

from onnx import NodeProto

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables import OperatorTable
from snapexport.graphs.lint.view import GraphView, attribute, has

_POOLS = ("AveragePool", "MaxPool", "LpPool")
_UNSUPPORTED_CONSTANTS = ("sparse_value", "value_string", "value_strings")
MOST_TOPK = 3840

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
"""Inputs that may also be computed from shapes and constants."""

_SIZES: dict[str, tuple[int, ...]] = {"ConstantOfShape": (0,), "Slice": (1, 2, 3, 4)}
_SIZES |= dict.fromkeys(("Expand", "Pad", "Reshape", "Tile"), (1,))
"""Inputs that set the size of the output."""


def pooling(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Pools have two or three dimensions, without dilation."""
    if node.op_type not in _POOLS:
        return
    kernel = attribute(node, "kernel_shape", [])
    if len(kernel) not in (2, 3):
        yield Problem(
            "pool-rank",
            f"{node.op_type} pools over {len(kernel)} dimensions; TensorRT pools over 2 or 3",
            "unsqueeze: [B, H, N] to [B, H, 1, N] with a kernel of [1, P]",
            table.source,
        )
    if any(dilation != 1 for dilation in attribute(node, "dilations", [])):
        yield Problem("pool-dilation", "dilations are not 1", "leave them out", table.source)


def scatter(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """ScatterND and ScatterElements have no reduction."""
    reduction = attribute(node, "reduction", "none")
    if node.op_type in ("ScatterND", "ScatterElements") and reduction != "none":
        yield Problem(
            "scatter-reduction",
            f"{node.op_type} with the reduction {reduction} is not supported",
            "write the sum by other operators, such as a product with a one-hot matrix",
            "TensorRT for RTX 1.7",
        )


def ranges(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The ends of a Range are known."""
    for name in node.input if node.op_type == "Range" else ():
        if not view.is_fixed(name):
            yield Problem(
                "range-ends",
                f"Range reads {name}, which depends on an input: its size is not fixed",
                "make a Range of constant size, and add the input to it",
                "TensorRT for RTX 1.7",
            )


def sizes(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """The inputs that set an output's size are known."""
    for index in _SIZES.get(node.op_type, ()):
        if has(node.input, index) and not view.is_fixed(node.input[index]):
            yield Problem(
                "computed-size",
                f"{node.op_type} reads {node.input[index]}, which depends on an input: the size of "
                "its output is not fixed",
                "give the output a constant size, and mask or gather by the input",
                "TensorRT for RTX 1.7",
            )


def constant(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Constants are dense numbers: no strings, no sparse tensors."""
    for name in _UNSUPPORTED_CONSTANTS if node.op_type == "Constant" else ():
        if attribute(node, name) is not None:
            yield Problem(
                "constant", f"a Constant of {name} is not supported", "use value", table.source
            )


def rotary_embedding(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """position_ids are INT64 or left out."""
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
    """A zero point is a constant zero."""
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
    """LayerNormalization and MaxPool have one output."""
    if node.op_type in ("LayerNormalization", "MaxPool") and any(node.output[1:]):
        yield Problem(
            "first-output",
            f"{node.op_type} has {len(node.output)} outputs: only the first is supported",
            "remove the other outputs",
            table.source,
        )


def known_inputs(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """Axes and the like are constants."""
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


def topk_size(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """K is known and at most MOST_TOPK. A larger K fails only when the engine is built."""
    if node.op_type != "TopK":
        return
    k = _topk(node, view)
    if k is None or k > MOST_TOPK:
        yield Problem(
            "topk-size",
            f"K is {'not a constant' if k is None else k}, and TensorRT gives at most {MOST_TOPK}",
            "build with --target tensorrt (rounds of smaller ones), lower --K or --eligible, or "
            "use the plugin",
            "NvInfer.h of TensorRT 11.1, ITopKLayer::setK",
        )


def _topk(node: NodeProto, view: GraphView) -> int | None:
    """K as a constant, or the output's size along the axis; None if it depends on an input."""
    k = view.numbers(node.input[1])
    if k is not None:
        return int(k.reshape(-1)[0])
    shape = view.tensor(node.output[0] or node.output[1]).shape
    if not shape or not view.is_fixed(node.input[1]):
        return None
    size: int | None = shape[attribute(node, "axis", -1)]
    return size


def topk_order(node: NodeProto, view: GraphView, table: OperatorTable) -> Iterator[Problem]:
    """TensorRT's layer always sorts: sorted is 1."""
    if node.op_type == "TopK" and not attribute(node, "sorted", 1):
        yield Problem("topk-sorted", "sorted is 0", "set it to 1", table.source)
