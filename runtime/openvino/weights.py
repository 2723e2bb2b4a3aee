"""Turns the weights of a graph's files into inputs, for which mapped memory is then put in place.

OpenVINO would read the files itself, by rules of its own about folders and links.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from snapexport.files.protobuf import Message
from snapexport.runtime.openvino.schema import (
    Entry,
    Graph,
    Model,
    Shape,
    Tensor,
    Type,
    Value,
    graph_of,
)


@dataclass(frozen=True)
class WeightSpan:
    """Where a weight's bytes lie, in a file of the graph's folder."""

    file: str
    offset: int
    nbytes: int


_EMPTY = WeightSpan("", 0, 0)


def split_weights(model: Message) -> tuple[Message, Mapping[str, WeightSpan]]:
    """The same model with its external weights as inputs, and where they lie by name."""
    graph = graph_of(model)
    rest = graph.without(Graph.INITIALIZER)
    spans = {}
    for tensor in graph.messages(Graph.INITIALIZER):
        if 0 in tensor.numbers(Tensor.DIMS):
            # OpenVINO's reader would forget its other dimensions.
            spans[tensor.text(Tensor.NAME)] = _EMPTY
            rest.add(Graph.INPUT, _as_input(tensor))
        elif tensor.all(Tensor.EXTERNAL):
            spans[tensor.text(Tensor.NAME)] = _span(tensor)
            rest.add(Graph.INPUT, _as_input(tensor))
        else:
            rest.add(Graph.INITIALIZER, tensor)
    return model.without(Model.GRAPH).add(Model.GRAPH, rest), spans


def _span(tensor: Message) -> WeightSpan:
    entries = tensor.messages(Tensor.EXTERNAL)
    said = {entry.text(Entry.KEY): entry.text(Entry.VALUE) for entry in entries}
    return WeightSpan(said["location"], int(said.get("offset", 0)), int(said["length"]))


def _as_input(tensor: Message) -> Message:
    shape = Message()
    for size in tensor.numbers(Tensor.DIMS):
        shape.add(Shape.DIM, Message().add(Shape.SIZE, size))
    kind = Message().add(Type.ELEMENT, tensor.numbers(Tensor.TYPE)[-1]).add(Type.SHAPE, shape)
    found = Message().add(Value.NAME, tensor.text(Tensor.NAME))
    return found.add(Value.TYPE, Message().add(Type.TENSOR, kind))
