"""Checks a build's graphs for a target: by the target's record, and by a real parser.

The record says which operators and types a target has, and how large a TopK may be. The parser of
TensorRT for RTX, where `[rtx]` is installed, says more of graphs for it and for TensorRT, whose
parser is its twin. Knows nothing of how graphs are made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
from onnx import NodeProto, TensorProto

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.targets import TENSORRT_RTX, Target, TargetCapabilities, capabilities

COLLECTIVES = (names.ALL_REDUCE, names.ALL_GATHER, names.ALL_TO_ALL)
"""Operators of ours without a body: graphs of ranks are cut at them."""


@dataclass(frozen=True)
class Finding:
    """A fault of a graph. node: its name, or its first output; a graph's input or output.

    A node in the body of one of our functions is named FUNCTION.NUMBER__CALL.
    """

    graph: str
    node: str
    operator: str
    message: str


def parser_for(target: Target) -> ModuleType | None:
    """The bindings of TensorRT for RTX; None where they aren't installed, or say nothing of it."""
    if not capabilities(target).compiled:
        return None
    try:
        return import_module(TENSORRT_RTX.module)
    except (ImportError, OSError):  # the bindings may be there without their libraries
        return None


def lint_build(build: Build, target: Target) -> list[Finding]:
    """Findings of all graphs, including the bodies of our functions."""
    rtx = parser_for(target)
    findings: list[Finding] = []
    for name in sorted(build.manifest.graphs):
        path = build.graph(name)
        findings += lint_model(onnx.load(path, load_external_data=False), name, target)
        findings += _parser_findings(rtx, path, name) if rtx else ()
    return findings


def lint_model(model: onnx.ModelProto, graph: str, target: Target) -> list[Finding]:
    """Findings by the target's record. `graph` is the model's name in them."""
    record = capabilities(target)
    try:
        inferred = onnx.shape_inference.infer_shapes(_inline(model), data_prop=True).graph
    except onnx.shape_inference.InferenceError as error:
        return [Finding(graph, "the graph", "", f"ONNX's inference of shapes stops: {error}")]
    shown = {value.name: value.type.tensor_type for value in inferred.value_info}
    shown |= {value.name: value.type.tensor_type for value in [*inferred.input, *inferred.output]}
    findings = [Finding(graph, *fault) for fault in _open_ends(inferred)]
    for node in inferred.node:
        for message in _faults(node, shown, record):
            findings.append(Finding(graph, node.name or node.output[0], node.op_type, message))
    return findings


def _inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with the functions' bodies in place of their calls."""
    from onnx import inliner

    named = onnx.ModelProto()
    named.CopyFrom(model)
    for function in named.functions:
        for number, node in enumerate(function.node):
            node.name = f"{function.name}.{number}"
    return inliner.inline_local_functions(named)


def _open_ends(graph: onnx.GraphProto) -> Iterator[tuple[str, str, str]]:
    for value in [*graph.input, *graph.output]:
        if not all(size.HasField("dim_value") for size in value.type.tensor_type.shape.dim):
            yield value.name, "", "its shape is not fixed"


def _faults(node: NodeProto, shown: dict[str, Any], record: TargetCapabilities) -> Iterator[str]:
    if not _has_operator(record, node):
        yield f"{record.title} has no {node.domain or 'ai.onnx'}::{node.op_type}"
    codes = (shown[name].elem_type for name in node.output if name in shown)
    types = {TensorProto.DataType.Name(code) for code in codes if code}
    if record.tensor_types and (others := sorted(types - set(record.tensor_types))):
        yield f"{record.title} does not compute in {', '.join(others)}"
    if node.op_type == "TopK" and record.largest_topk:
        yield from _large_topk(node, shown, record.largest_topk)


def _has_operator(record: TargetCapabilities, node: NodeProto) -> bool:
    """Functions are inlined, so what is left in our domain has no body."""
    if not node.domain:
        return onnx.defs.has(node.op_type) or node.op_type in record.own_operators
    is_cut = node.domain == names.DOMAIN and node.op_type in COLLECTIVES
    return node.domain in record.domains or (is_cut and not record.compiled)


def _large_topk(node: NodeProto, shown: dict[str, Any], largest: int) -> Iterator[str]:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    made = shown.get(node.output[0])
    kept = made.shape.dim[axis].dim_value if made and made.shape.dim else 0
    if not 0 < kept <= largest:
        yield f"K is {kept or 'not fixed'}, and may be at most {largest}"


def _parser_findings(rtx: Any, path: Path, graph: str) -> Iterator[Finding]:
    """Nodes that the parser of TensorRT for RTX refuses. Needs no GPU."""
    builder = rtx.Builder(_log(rtx))
    network = builder.create_network(0)
    parser = rtx.OnnxParser(network, _log(rtx))
    if parser.parse_from_file(str(path)):
        return
    for error in map(parser.get_error, range(parser.num_errors)):
        inside = "".join(f" in {function}" for function in error.local_function_stack())
        message = f"{rtx.__name__} {rtx.__version__} refuses it{inside}: {error.desc().strip()}"
        yield Finding(graph, error.node_name(), error.node_operator(), message)
    if not parser.num_errors:
        yield Finding(graph, "the graph", "", f"{rtx.__name__} {rtx.__version__} refuses it")


def _log(rtx: Any) -> Any:
    """A logger that prints only what ends the library: the parser's errors are findings."""
    return rtx.Logger(rtx.Logger.INTERNAL_ERROR)
