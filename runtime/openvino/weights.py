"""Turns the weights of a graph's files into inputs, for which mapped memory is then put in place.

OpenVINO would read the files itself, by rules of its own about folders and links.
"""

import mmap
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
    Shape,
    Tensor,
    Type,
    Value,
    graph_of,
)


@dataclass(frozen=True)
class WeightSpan:
    """Where a weight's bytes lie."""

    file: Path
    offset: int
    nbytes: int


_EMPTY = WeightSpan(Path(), 0, 0)
_MAPS, _SMALL, _LARGE = 400, 1 << 16, 4 << 20
"""A map keeps a file open. Small weights are read, and beyond so many maps all but large ones."""


class MappedWeights:
    """Weights of a build, mapped once for all graphs that read them."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._bytes: dict[WeightSpan, NDArray[np.uint8]] = {_EMPTY: np.zeros(0, np.uint8)}

    def bytes_of(self, span: WeightSpan) -> NDArray[np.uint8]:
        """A weight's bytes, at an address that lasts. Raises ValueError for a file without them."""
        if span not in self._bytes:
            least = _SMALL if len(self._maps) < _MAPS else _LARGE
            self._bytes[span] = self._map(span) if span.nbytes > least else _read(span)
        return self._bytes[span]

    def _map(self, span: WeightSpan) -> NDArray[np.uint8]:
        before = span.offset % mmap.ALLOCATIONGRANULARITY
        size, start = before + span.nbytes, span.offset - before
        with span.file.open("rb") as file:
            # Nothing writes to it: OpenVINO takes no read-only array.
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
        self._maps.append(mapped)
        return np.frombuffer(mapped, np.uint8, span.nbytes, before)

    def leave_to_the_disk(self) -> None:
        """Free the memory of what was read. What is read again comes from the files."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)


def _read(span: WeightSpan) -> NDArray[np.uint8]:
    found = np.fromfile(span.file, np.uint8, span.nbytes, offset=span.offset)
    if found.size < span.nbytes:
        raise ValueError(f"{span.file.name} is cut off")
    return found


def split_weights(model: Message, folder: Path) -> tuple[Message, Mapping[str, WeightSpan]]:
    """The same model with its external weights as inputs, and where they lie by name.

    folder: the graph's.
    """
    graph = graph_of(model)
    rest = graph.without(Graph.INITIALIZER)
    spans = {}
    for tensor in graph.messages(Graph.INITIALIZER):
        if 0 in tensor.numbers(Tensor.DIMS):
            # OpenVINO's reader would forget its other dimensions.
            spans[tensor.text(Tensor.NAME)] = _EMPTY
            rest.add(Graph.INPUT, _as_input(tensor))
        elif tensor.all(Tensor.EXTERNAL):
            spans[tensor.text(Tensor.NAME)] = _span(tensor, folder)
            rest.add(Graph.INPUT, _as_input(tensor))
        else:
            rest.add(Graph.INITIALIZER, tensor)
    return model.without(Model.GRAPH).add(Model.GRAPH, rest), spans


def _span(tensor: Message, folder: Path) -> WeightSpan:
    entries = tensor.messages(Tensor.EXTERNAL)
    said = {entry.text(Entry.KEY): entry.text(Entry.VALUE) for entry in entries}
    return WeightSpan(folder / said["location"], int(said.get("offset", 0)), int(said["length"]))


def _as_input(tensor: Message) -> Message:
    shape = Message()
    for size in tensor.numbers(Tensor.DIMS):
        shape.add(Shape.DIM, Message().add(Shape.SIZE, size))
    kind = Message().add(Type.ELEMENT, tensor.numbers(Tensor.TYPE)[-1]).add(Type.SHAPE, shape)
    found = Message().add(Value.NAME, tensor.text(Tensor.NAME))
    return found.add(Value.TYPE, Message().add(Type.TENSOR, kind))
