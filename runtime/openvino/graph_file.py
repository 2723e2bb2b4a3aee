"""Reads a graph's file, with its weights as inputs for mapped memory.

OpenVINO's reader would read weights itself, by rules of its own about folders and links. The
runtime has no onnx: a part of its schema is declared here, and fields that it does not name stay as
they are. Knows no OpenVINO.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from snapexport.runtime.openvino.weights import EMPTY, WeightSpan

Message = Any
"""A message of ONNX."""

_SCHEMA = """
Model graph=7:Graph
Graph initializer=5:Tensor* input=11:Value* output=12:Value*
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


def _replace(field: Any, messages: list[Message]) -> None:
    del field[:]
    field.extend(messages)


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
