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


class MappedWeights:
    """Weights of a build, mapped once for all graphs that read them."""

    def __init__(self) -> None:
        self._mapped: dict[WeightSpan, tuple[mmap.mmap, NDArray[np.uint8]]] = {}

    def bytes_of(self, span: WeightSpan) -> NDArray[np.uint8]:
        """A weight's bytes, which stay mapped. Raises ValueError for a file without them."""
        if not span.nbytes:
            return np.zeros(0, np.uint8)
        if span not in self._mapped:
            before = span.offset % mmap.ALLOCATIONGRANULARITY
            with span.file.open("rb") as file:
                # Nothing writes to it: OpenVINO takes no read-only array.
                mapped = mmap.mmap(
                    file.fileno(),
                    before + span.nbytes,
                    access=mmap.ACCESS_COPY,
                    offset=span.offset - before,
                )
            self._mapped[span] = mapped, np.frombuffer(mapped, np.uint8, span.nbytes, before)
        return self._mapped[span][1]

    def leave_to_the_disk(self) -> None:
        """Free the memory of what was read. What is read again comes from the files."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped, _ in self._mapped.values():
                mapped.madvise(mmap.MADV_DONTNEED)


_EMPTY = WeightSpan(Path(), 0, 0)


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
