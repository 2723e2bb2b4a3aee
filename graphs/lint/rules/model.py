"""Rules of a whole graph."""

from collections.abc import Iterator

import onnx

from snapexport.graphs.lint.findings import Problem
from snapexport.graphs.lint.tables import OperatorTable
from snapexport.graphs.lint.view import GraphView

_LITERAL = {
    ("AveragePool", "kernel_shape"),
    ("MaxPool", "kernel_shape"),
    ("LpPool", "kernel_shape"),
}

MOST_BYTES = 2**31 - 1
_PROTOBUF = "protobuf: a serialized message has less than 2 GiB"


def size(nbytes: int) -> Iterator[Problem]:
    """The file is below protobuf's limit of 2 GiB, external weights not counted."""
    if nbytes > MOST_BYTES:
        yield Problem(
            "model-size",
            f"the file has {nbytes} bytes; the parser reads at most {MOST_BYTES}",
            "keep the weights in external files",
            _PROTOBUF,
        )


def opset(model: onnx.ModelProto, table: OperatorTable) -> Iterator[Problem]:
    """The opset is in the parser's range."""
    lowest, highest = table.opsets
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not lowest <= entry.version <= highest:
            yield Problem(
                "opset",
                f"opset {entry.version} is not between {lowest} and {highest}",
                "export the graph again with such an opset",
                table.source,
            )


def references(model: onnx.ModelProto) -> Iterator[Problem]:
    """The attributes of _LITERAL are literals in a function's body, not the function's own."""
    for function in model.functions:
        for node in function.node:
            for attribute in node.attribute:
                if attribute.ref_attr_name and (node.op_type, attribute.name) in _LITERAL:
                    yield Problem(
                        "attribute-reference",
                        f"{attribute.name} of {node.op_type} in {function.name} refers to the "
                        f"function's attribute {attribute.ref_attr_name}, which is not resolved",
                        "write the value into the function's body",
                        "TensorRT for RTX 1.7",
                    )


def valid(view: GraphView) -> Iterator[Problem]:
    """ONNX can infer types and shapes."""
    if view.invalid:
        yield Problem(
            "onnx",
            f"ONNX cannot infer types and shapes: {view.invalid}",
            "make the graph pass onnx.checker first",
            "onnx.shape_inference",
        )


def wide_ends(view: GraphView) -> Iterator[Problem]:
    """No input and no output is fp64."""
    for name, tensor in (view.inputs | view.outputs).items():
        if tensor.type == "DOUBLE":
            yield Problem(
                "fp64",
                f"{name} is fp64, which is taken for fp32 without an error: its buffer is misread",
                "make it fp32, and cast inside the graph",
                "TensorRT for RTX 1.7",
            )


def fixed_shapes(view: GraphView) -> Iterator[Problem]:
    """Inputs have fixed shapes, since engines have no optimization profiles."""
    for name, tensor in view.inputs.items():
        if tensor.shape is None or None in tensor.shape:
            yield Problem(
                "input-shape",
                f"the input {name} has no fixed shape: {tensor.shape}",
                "build it with fixed dimensions",
                "docs/reference/build-directory.md: engines have no optimization profiles",
            )
