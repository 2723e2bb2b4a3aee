"""Reads and writes protobuf's wire format, for what must not import a library of it.

Knows no schema: a message is a list of numbered fields.
"""

from collections.abc import Iterable, Iterator

Value = int | bytes
"""A number, or the bytes of a text, a message, packed numbers or a float."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class Message:
    """The fields of a message in their order, repeated ones by repetition."""

    def __init__(self, fields: Iterable[tuple[int, int, Value]] = ()) -> None:
        """fields: (number, wire type, value)."""
        self._fields = list(fields)

    @classmethod
    def read(cls, data: bytes) -> "Message":
        """Raises ValueError for what is no message."""
        return cls(_fields(data))

    def write(self) -> bytes:
        """The message's bytes."""
        return b"".join(_field(*field) for field in self._fields)

    def all(self, number: int) -> list[bytes]:
        """Every value of a field of texts or messages."""
        return [value for at, _, value in self._fields if at == number and isinstance(value, bytes)]

    def messages(self, number: int) -> "list[Message]":
        """Every value of a field of messages."""
        return [Message.read(value) for value in self.all(number)]

    def texts(self, number: int) -> list[str]:
        """Every value of a field of texts."""
        return [value.decode() for value in self.all(number)]

    def text(self, number: int) -> str:
        """The last text of a field; "" if it has none."""
        return (self.texts(number) or [""])[-1]

    def numbers(self, number: int) -> list[int]:
        """Every value of a field of integers, packed or not."""
        found: list[int] = []
        for at, _, value in self._fields:
            if at == number:
                found += [value] if isinstance(value, int) else _packed(value)
        return found

    def add(self, number: int, value: "Value | str | Message") -> "Message":
        """Append a field, and return the message itself."""
        if isinstance(value, int):
            self._fields.append((number, _VARINT, value))
            return self
        data = value.write() if isinstance(value, Message) else value
        self._fields.append((number, _BYTES, data.encode() if isinstance(data, str) else data))
        return self

    def without(self, *numbers: int) -> "Message":
        """A copy that lacks these fields."""
        return Message(field for field in self._fields if field[0] not in numbers)


def _fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise ValueError(f"protobuf has no wire type {wire}")
        if at + size > len(data):
            raise ValueError("a protobuf message ends too early")
        yield number, wire, data[at : at + size]
        at += size


def _field(number: int, wire: int, value: Value) -> bytes:
    head = _written(number << 3 | wire)
    if isinstance(value, int):
        return head + _written(value)
    return head + (_written(len(value)) if wire == _BYTES else b"") + value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if at == len(data):
            raise ValueError("a protobuf message ends too early")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a protobuf number is too long")


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = _varint(data, at)
        found.append(number)
    return found


def _written(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
