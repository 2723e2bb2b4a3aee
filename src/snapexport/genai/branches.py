"""Turns the build's graphs into branches of one graph: their values get names of their own."""

from collections.abc import Iterable, Mapping

import onnx
from onnx import GraphProto, NodeProto, ValueInfoProto


def rename(graph: GraphProto, stem: str, given: Mapping[str, str]) -> None:
    """Rename every value and node of a graph in place, since a branch shares its parent's names.

    given: {name: the parent's value that takes its place, without an input}. Others get `stem`.
    Weights keep their files.
    """

    def new(name: str) -> str:
        return given.get(name, stem + name) if name else name

    def apply(part: GraphProto) -> None:
        for value in _values(part):
            value.name = new(value.name)
        for node in part.node:
            node.name = stem + node.name
            node.input[:] = map(new, node.input)
            node.output[:] = map(new, node.output)
            for inner in _subgraphs(node):
                apply(inner)

    kept = [value for value in graph.input if value.name not in given]
    del graph.input[:]
    graph.input.extend(kept)
    apply(graph)


def _values(graph: GraphProto) -> Iterable[ValueInfoProto | onnx.TensorProto]:
    yield from (*graph.input, *graph.output, *graph.value_info, *graph.initializer)


def _subgraphs(node: NodeProto) -> Iterable[GraphProto]:
    return (one.g for one in node.attribute if one.type == onnx.AttributeProto.GRAPH)


def keep_outputs(graph: GraphProto, wanted: Iterable[str]) -> None:
    """Keep these outputs of a graph, in this order."""
    found = {value.name: value for value in graph.output}
    kept = [found[name] for name in wanted]
    del graph.output[:]
    graph.output.extend(kept)


def files_of(model: onnx.ModelProto) -> set[str]:
    """The files of a model's weights, in its graph and its branches."""

    def found(graph: GraphProto) -> Iterable[str]:
        for tensor in graph.initializer:
            yield from (one.value for one in tensor.external_data if one.key == "location")
        for node in graph.node:
            for inner in _subgraphs(node):
                yield from found(inner)

    return set(found(model.graph))
