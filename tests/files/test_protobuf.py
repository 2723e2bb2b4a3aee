"""Protobuf's wire format without its library."""

import onnx
import pytest

from snapexport.files.protobuf import Message
from tests.oracle import cases
from tests.oracle.cases import Case


def test_a_message_is_written_as_it_was_read() -> None:
    build = cases.build_of(Case(target="portable"))
    data = build.graph("decode").read_bytes()
    message = Message.read(data)
    assert message.write() == data
    (graph,) = message.messages(7)
    names = [value.text(1) for value in graph.messages(11)]
    assert names == [value.name for value in onnx.load_from_string(data).graph.input]


def test_numbers_are_read_packed_and_not() -> None:
    tensor = onnx.TensorProto(dims=[300, 0, 7])
    assert Message.read(tensor.SerializeToString()).numbers(1) == [300, 0, 7]
    assert Message().add(1, bytes([0xAC, 0x02, 0x00])).add(1, 7).numbers(1) == [300, 0, 7]


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05ab", b"\x08\xff", b"\x08" + b"\xff" * 12, b"\x0b", b"\x0d\x00"]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="protobuf"):
        Message.read(data)
