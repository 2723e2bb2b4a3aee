"""Reads a graph's file: its functions inlined, and its weights as inputs for mapped memory.

OpenVINO's reader knows no model-local functions. It would also read weights itself, by rules of its
own about folders and links. Graphs of the target portable are other runtimes' too, so this is done
while a graph is loaded. The runtime has no onnx: a part of its schema is declared here, and fields
that it does not name stay as they are. Weights are mapped once for all graphs that read them. Knows
no OpenVINO.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from snapexport.contract.names import DOMAIN


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


TOP_SET, TOP_VALUES = "TopSet", "TopValues"
"""What a function's TopK becomes, by what is read of it. OpenVINO's takes long where ties matter.

TOP_SET: the K highest; of equal ones those with the lower index; in the order of the indices.
TOP_VALUES: values without indices, which have no ties.
"""

Message = Any
"""A message of ONNX."""
Rename = Callable[[str], str]

_SCHEMA = """
Model graph=7:Graph functions=25:Function*
Graph node=1:Node* initializer=5:Tensor* input=11:Value* output=12:Value* value_info=13:Value*
Node input=1:text* output=2:text* name=3:text op_type=4:text attribute=5:Attribute*
Node domain=7:text overload=8:text
Attribute name=1:text i=3:number g=6:Graph ref_attr_name=21:text
Function name=1:text input=4:text* output=5:text* node=7:Node* domain=10:text
Function attribute_proto=11:Attribute* overload=13:text
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


def inline(model: Message) -> None:
    """Replace the calls of a model's functions by their bodies."""
    functions = {(one.domain, one.name, one.overload): one for one in model.functions}
    _Inliner(functions).inline(model.graph)
    del model.functions[:]


class _Inliner:
    """functions: by domain, name and overload."""

    def __init__(self, functions: Mapping[tuple[str, str, str], Message]) -> None:
        self._functions = functions
        self._calls = count()

    def inline(self, graph: Message) -> None:
        """Replace the calls in a graph, or in the body of a loop or a branch."""
        _replace(graph.node, list(self._nodes(graph.node)))

    def _nodes(self, nodes: Iterable[Message]) -> Iterator[Message]:
        for node in nodes:
            function = self._functions.get((node.domain, node.op_type, node.overload))
            if function is None:
                for graph in _graphs(node):
                    self.inline(graph)
                yield node
            else:
                yield from self._nodes(_body(node, function, f"call{next(self._calls)}."))


def _body(call: Message, function: Message, prefix: str) -> Iterable[Message]:
    """The nodes of a function, with the names and attributes of one call."""
    names = dict.fromkeys(function.input, "") | dict(zip(function.input, call.input, strict=False))
    results = zip(function.output, call.output, strict=False)
    names |= {inner: outer for inner, outer in results if outer}
    given = {one.name: one for one in (*function.attribute_proto, *call.attribute)}

    def rename(name: str) -> str:
        return names.get(name, prefix + name) if name else ""

    body = _MESSAGES["Function"]()
    body.CopyFrom(function)
    _rename(body.node, rename, given, prefix)
    nodes: Iterable[Message] = body.node
    return nodes


def _rename(
    nodes: Iterable[Message], rename: Rename, given: Mapping[str, Message], prefix: str
) -> None:
    for node in nodes:
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]
        if node.name:
            node.name = prefix + node.name
        _replace(node.attribute, list(_attributes(node, given)))
        for graph in _graphs(node):  # its own names may repeat the caller's
            _rename(graph.node, rename, given, prefix)
            for value in (*graph.input, *graph.output, *graph.initializer):
                value.name = rename(value.name)
            del graph.value_info[:]


def _attributes(node: Message, given: Mapping[str, Message]) -> Iterator[Message]:
    """The attributes of a node, with the call's value where one refers to it."""
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            value = _MESSAGES["Attribute"]()
            value.CopyFrom(given[attribute.ref_attr_name])
            value.name = attribute.name
            yield value


def _graphs(node: Message) -> list[Message]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _replace(field: Any, messages: list[Message]) -> None:
    del field[:]
    field.extend(messages)


def mark_top_sets(model: Message) -> None:
    """Name each TopK of a function by what is read of it.

    Functions sort what they keep. A TopK outside of them stays as it is.
    """
    for function in model.functions:
        _mark_top_sets(function)


def _mark_top_sets(function: Message) -> None:
    read = {name for node in function.node for name in node.input} | set(function.output)
    for node in function.node:
        if (node.domain, node.op_type) != ("", "TopK"):
            continue
        is_read = node.output[1] in read
        if is_read and any(one.name == "largest" and not one.i for one in node.attribute):
            continue
        node.domain, node.op_type = DOMAIN, TOP_SET if is_read else TOP_VALUES


def take_weights(graph: Message, folder: Path) -> Mapping[str, WeightSpan]:
    """Make inputs of external weights. Returns their places by name. folder: the graph's."""
    spans, kept = {}, []
    for tensor in graph.initializer:
        if 0 in tensor.dims:  # OpenVINO's reader would forget its other dimensions
            spans[tensor.name] = EMPTY
        elif tensor.external_data:
            place = {entry.key: entry.value for entry in tensor.external_data}
            start, size = int(place.get("offset", 0)), int(place["length"])
            spans[tensor.name] = WeightSpan(folder / place["location"], start, size)
        else:
            kept.append(tensor)
            continue
        kind = graph.input.add(name=tensor.name).type.tensor_type
        kind.elem_type = tensor.data_type
        for size in tensor.dims:
            kind.shape.dim.add(dim_value=size)
    _replace(graph.initializer, kept)
    return spans
