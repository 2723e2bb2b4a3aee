"""Reads a graph's file, and maps its weights once for all graphs that read them.

OpenVINO's reader would read weights itself, by rules of its own about folders and links, and ONNX
Runtime would map each file once for each graph. The runtime has no onnx: a part of its schema is
declared here, and fields that it does not name stay as they are. Knows no library that runs graphs.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray


@dataclass(frozen=True)
class WeightSpan:
    """The place of a weight's bytes."""

    file: Path
    offset: int
    nbytes: int


EMPTY = WeightSpan(Path(), 0, 0)
"""No bytes."""
_MAPS, _SMALL, _LARGE = 400, 1 << 16, 4 << 20
"""A map keeps a file open. Small weights are read, and with more maps all but large ones."""


class MappedWeights:
    """Weights of a build, mapped once for all graphs that read them."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._bytes: dict[WeightSpan, NDArray[np.uint8]] = {EMPTY: np.zeros(0, np.uint8)}

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


Message = Any
"""A message of ONNX."""

_SCHEMA = """
Model graph=7:Graph
Graph node=1:Node* initializer=5:Tensor* input=11:Value* output=12:Value*
Node input=1:text* output=2:text* op_type=4:text attribute=5:Attribute*
Attribute name=1:text g=6:Graph
Tensor dims=1:number* data_type=2:number name=8:text external_data=13:Entry*
Entry key=1:text value=2:text
Value name=1:text type=2:Type
Type tensor_type=1:TensorType
TensorType elem_type=1:number shape=2:Shape
Shape dim=1:Dim*
Dim dim_value=1:number
"""
"""Messages and fields with ONNX's own names and numbers (onnx.proto); *: repeated."""

_TYPES = {"text": FieldDescriptorProto.TYPE_STRING, "number": FieldDescriptorProto.TYPE_INT64}


def _declare() -> Mapping[str, Any]:
    """A class for each message of the schema."""
    file = FileDescriptorProto(name="onnx_part", package="onnx_part")
    messages: dict[str, Any] = {}
    for line in _SCHEMA.split("\n")[1:-1]:
        name, *fields = line.split()
        if name not in messages:
            messages[name] = file.message_type.add(name=name)
        for field in fields:
            numbered, kind = field.split(":")
            own, number = numbered.split("=")
            one = kind.removesuffix("*")
            added = messages[name].field.add(name=own, number=int(number))
            added.label = (
                FieldDescriptorProto.LABEL_REPEATED
                if kind.endswith("*")
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            added.type = _TYPES.get(one, FieldDescriptorProto.TYPE_MESSAGE)
            if one not in _TYPES:
                added.type_name = f".onnx_part.{one}"
    pool = DescriptorPool()
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"onnx_part.{name}")) for name in messages
    }


_MESSAGES = _declare()


def read_model(data: bytes) -> Message:
    """A file's model. Raises ValueError."""
    try:
        model = _MESSAGES["Model"].FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    if not model.HasField("graph"):
        raise ValueError("it has no graph")
    return model


def external_weights(graph: Message) -> Iterator[Message]:
    """The initializers whose bytes are in other files."""
    return (tensor for tensor in graph.initializer if tensor.external_data)


def _replace(field: Any, messages: list[Message]) -> None:
    del field[:]
    field.extend(messages)


def span_of(tensor: Message, folder: Path) -> WeightSpan:
    """The place of an external weight. Raises ValueError or KeyError. folder: the graph's."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    start, size = int(place.get("offset", 0)), int(place["length"])
    return WeightSpan(folder / place["location"], start, size)


def take_weights(graph: Message, folder: Path) -> Mapping[str, WeightSpan]:
    """Make inputs of external weights. Returns their places by name. folder: the graph's."""
    spans, kept = {}, []
    for tensor in graph.initializer:
        if 0 in tensor.dims:  # OpenVINO's reader would forget its other dimensions
            spans[tensor.name] = EMPTY
        elif tensor.external_data:
            spans[tensor.name] = span_of(tensor, folder)
        else:
            kept.append(tensor)
            continue
        kind = graph.input.add(name=tensor.name).type.tensor_type
        kind.elem_type = tensor.data_type
        for size in tensor.dims:
            kind.shape.dim.add(dim_value=size)
    _replace(graph.initializer, kept)
    return spans
