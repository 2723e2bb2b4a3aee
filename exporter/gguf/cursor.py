"""Reads the values of a GGUF header one after another. Every length is compared with what is left.

ValueError: the header is damaged. Lists are stepped over: only their lengths are kept.
"""

import mmap
import struct
from dataclasses import dataclass
from typing import Any

NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""The format's types of numbers."""
TEXT, _LIST = 8, 9
_LENGTH, _KIND = NUMBERS[10], NUMBERS[4]
_TEXT_BYTES = 1 << 20
_NAME_BYTES = 1 << 10
_LISTED = 1 << 22
"""Most elements of all lists together: three times as many as Gemma 3's vocabulary needs."""


@dataclass(frozen=True)
class Listed:
    """A list that was stepped over. kind: of its elements, which begin at `at` (`lists.py`)."""

    length: int
    kind: int = TEXT
    at: int = 0


Value = bool | int | float | str | Listed


class Cursor:
    """A position in the bytes of a file, up to `end`."""

    def __init__(self, content: mmap.mmap, at: int, end: int) -> None:
        self.at = at
        self._content, self._end, self._listed = content, end, 0

    def entry(self) -> tuple[str, Value]:
        """A name and its value."""
        return self.name(), self._value(self.kind())

    def name(self) -> str:
        """A short text."""
        return self._text(_NAME_BYTES)

    def kind(self) -> int:
        """A 32-bit number: a type, or a number of dimensions."""
        return int(self._number(_KIND))

    def length(self) -> int:
        """A 64-bit number: a size or an offset."""
        return int(self._number(_LENGTH))

    def _value(self, kind: int) -> Value:
        if kind == TEXT:
            return self._text(_TEXT_BYTES)
        if kind == _LIST:
            return self._list()
        if kind not in NUMBERS:
            raise ValueError(f"its metadata has a value of type {kind}, which is not known")
        number: bool | int | float = self._number(NUMBERS[kind])
        return number

    def _list(self) -> Listed:
        kind, length = self.kind(), self.length()
        self._listed += length
        if self._listed > _LISTED:
            raise ValueError(f"its lists have more than {_LISTED} elements")
        start = self.at
        if kind == TEXT:
            for _ in range(length):
                self._take(self.length())
        elif kind in NUMBERS:
            self._take(length * NUMBERS[kind].size)
        else:
            raise ValueError(f"its metadata has a list of type {kind}, which is not known")
        return Listed(length, kind, start)

    def _text(self, most: int) -> str:
        length = self.length()
        if length > most:
            raise ValueError(f"a text of {length} bytes, at most {most} are read")
        start = self._take(length)
        return self._content[start : self.at].decode()

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack_from(self._content, self._take(form.size))[0]

    def _take(self, nbytes: int) -> int:
        """Step over bytes. Returns where they begin."""
        if nbytes > self._end - self.at:
            raise ValueError("it goes past the file's end, or past what is read of it")
        self.at += nbytes
        return self.at - nbytes
