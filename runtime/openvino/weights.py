"""Turns the weights of a graph's files into inputs, for which mapped memory is then put in place.

OpenVINO would read the files itself, by rules of its own about folders and links.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapexport.files.protobuf import Message
from snapexport.runtime.openvino.schema import (
    Entry,
    Graph,
    Model,
    Node,
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


_INTEGER_PRODUCT = "MatMulNBits"
_EMPTY = WeightSpan("", 0, 0)


def split_weights(model: Message, folder: Path) -> tuple[Message, Mapping[str, WeightSpan]]:
    """The same model with its external weights as inputs, and where they lie by name.

    Integers of products stay weights, with their bytes: OpenVINO's reader looks at them, and
    rearranges them. folder: the graph's.
    """
    graph = graph_of(model)
    rest = graph.without(Graph.INITIALIZER)
    spans = {}
    looked_at = _read_by(graph, _INTEGER_PRODUCT)
    for tensor in graph.messages(Graph.INITIALIZER):
        if tensor.text(Tensor.NAME) in looked_at and tensor.all(Tensor.EXTERNAL):
            rest.add(Graph.INITIALIZER, _with_bytes(tensor, folder))
        elif 0 in tensor.numbers(Tensor.DIMS):
            # OpenVINO's reader would forget its other dimensions.
            spans[tensor.text(Tensor.NAME)] = _EMPTY
            rest.add(Graph.INPUT, _as_input(tensor))
        elif tensor.all(Tensor.EXTERNAL):
            spans[tensor.text(Tensor.NAME)] = _span(tensor)
            rest.add(Graph.INPUT, _as_input(tensor))
        else:
            rest.add(Graph.INITIALIZER, tensor)
    return model.without(Model.GRAPH).add(Model.GRAPH, rest), spans


def _read_by(graph: Message, operator: str) -> set[str]:
    """What the nodes of an operator read."""
    nodes = (one for one in graph.messages(Graph.NODE) if one.text(Node.OPERATOR) == operator)
    return {name for node in nodes for name in node.texts(Node.INPUT)}


def _with_bytes(tensor: Message, folder: Path) -> Message:
    """A weight that holds its bytes. Raises ValueError for a file without them."""
    span = _span(tensor)
    raw = mapped_bytes(folder, span).tobytes()
    return tensor.without(Tensor.EXTERNAL, Tensor.LOCATION).add(Tensor.RAW, raw)


def _span(tensor: Message) -> WeightSpan:
    entries = tensor.messages(Tensor.EXTERNAL)
    said = {entry.text(Entry.KEY): entry.text(Entry.VALUE) for entry in entries}
    return WeightSpan(said["location"], int(said.get("offset", 0)), int(said["length"]))


def mapped_bytes(folder: Path, span: WeightSpan) -> NDArray[np.uint8]:
    """A weight's bytes, mapped."""
    if not span.nbytes:
        return np.zeros(0, np.uint8)
    # Nothing writes to it: the mode is for OpenVINO, which takes no read-only array.
    return np.memmap(folder / span.file, np.uint8, "c", span.offset, span.nbytes)


def _as_input(tensor: Message) -> Message:
    shape = Message()
    for size in tensor.numbers(Tensor.DIMS):
        shape.add(Shape.DIM, Message().add(Shape.SIZE, size))
    kind = Message().add(Type.ELEMENT, tensor.numbers(Tensor.TYPE)[-1]).add(Type.SHAPE, shape)
    found = Message().add(Value.NAME, tensor.text(Tensor.NAME))
    return found.add(Value.TYPE, Message().add(Type.TENSOR, kind))
