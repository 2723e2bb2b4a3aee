"""What holds for a whole graph."""

from collections.abc import Iterator

import onnx

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables.operator_table import OperatorTable
from snapexport.graphs.lint.view import GraphView

MOST_BYTES = 2**31 - 1
_PROTOBUF = "protobuf: a serialized message has less than 2 GiB"


def size(nbytes: int) -> Iterator[Problem]:
    """The file itself; external weights don't count."""
    if nbytes > MOST_BYTES:
        yield Problem(
            "model-size",
            f"the graph has {nbytes} bytes with its own weights, and the parser reads 2 GiB",
            "keep the weights in external files",
            _PROTOBUF,
        )


def opset(model: onnx.ModelProto, table: OperatorTable) -> Iterator[Problem]:
    """The parser's range of opsets."""
    lowest, highest = table.opsets
    for one in model.opset_import:
        if one.domain in ("", "ai.onnx") and not lowest <= one.version <= highest:
            yield Problem(
                "opset",
                f"opset {one.version} is not between {lowest} and {highest}",
                "export it anew",
                table.source,
            )


def valid(view: GraphView) -> Iterator[Problem]:
    """What isn't ONNX can't be checked any further."""
    if view.invalid:
        yield Problem(
            "onnx",
            f"types and shapes do not follow: {view.invalid}",
            "make it pass onnx.checker first",
            "onnx.shape_inference",
        )


def fixed_shapes(view: GraphView) -> Iterator[Problem]:
    """Without optimization profiles every dimension of an input has to be a number."""
    for name, tensor in view.inputs.items():
        if tensor.shape is None or not all(tensor.shape):
            yield Problem(
                "input-shape",
                f"the input {name} has no fixed shape: {tensor.shape}",
                "build it with fixed dimensions",
                "docs/reference/build-directory.md: engines have no optimization profiles",
            )
