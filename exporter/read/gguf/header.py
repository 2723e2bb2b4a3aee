"""Reads and checks the header of a GGUF file: its metadata, and where each tensor is.

Whatever a loop or an allocation depends on is bounded before it is used, and every length is
compared with what is left. Lists are stepped over at first: only their lengths are kept. Knows no
architecture.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.files.nearby import did_you_mean, near
from snapexport.files.untrusted import HEADER_BYTES, open_regular

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
    """A list that was stepped over. kind: of its elements, which begin at `at`."""

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


ORIGINAL = "start from the original checkpoint, in safetensors"
TOKENIZER = "tokenizer"
DOWNLOAD_AGAIN = "download the file again: it is damaged or incomplete"
MAGIC = b"GGUF"
_START = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_ENTRIES = 1 << 16
"""Most tensors, and most metadata entries. The largest models have a few thousand tensors."""
_DIMENSIONS = 4
_ALIGNMENT = "general.alignment"
BlockSizes = Mapping[int, tuple[int, int]]
"""{number of a tensor's type: (elements of a block, bytes of a block)}."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the file has it. kind: number of its type. shape: in PyTorch's order.

    file: the part of a split file that has it; None: the header's.
    """

    kind: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: Path | None = None


@dataclass(frozen=True)
class GgufHeader:
    """A GGUF file without its data."""

    file: Path
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]

    @property
    def is_split(self) -> bool:
        """Whether its tensors are in several files."""
        return any(tensor.file for tensor in self.tensors.values())


def read_header(path: Path, blocks: BlockSizes) -> GgufHeader:
    """Read a header. Raises UserError for anything but a sound one."""
    try:
        with open_regular(path, "--model takes a GGUF file") as file:
            size, magic = os.fstat(file.fileno()).st_size, file.read(len(MAGIC))
            if magic != MAGIC:
                raise UserError(
                    f"{path} is not a GGUF file: it begins with {magic!r}",
                    "--model takes a checkpoint directory, a GGUF file or a Hugging Face Hub id",
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return GgufHeader(path, *_parse(content, size, blocks))
    except FileNotFoundError:
        found = did_you_mean(near(path, "config.json", path.suffix))
        raise UserError(
            f"no such file: {path}", f"{found}check the path of the GGUF file"
        ) from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as GGUF: {error}", DOWNLOAD_AGAIN) from None


def _parse(
    content: mmap.mmap, size: int, blocks: BlockSizes
) -> tuple[dict[str, Value], dict[str, StoredTensor]]:
    if size < _START.size:
        raise ValueError("the file ends within it")
    _, version, tensors, entries = _START.unpack_from(content)
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}, only little-endian 2 and 3 are read")
    for count, what in ((tensors, "tensors"), (entries, "metadata entries")):
        if count > _ENTRIES:
            raise ValueError(f"it announces {count} {what}, at most {_ENTRIES} are read")
    cursor = Cursor(content, _START.size, min(size, HEADER_BYTES))
    metadata = _unique(cursor.entry() for _ in range(entries))
    stored = _unique((cursor.name(), _tensor(cursor, blocks)) for _ in range(tensors))
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment.bit_count() != 1:
        raise ValueError(f"{_ALIGNMENT} is {alignment!r:.100}, not a power of two up to {1 << 20}")
    start = -(-cursor.at // alignment) * alignment
    placed = {name: replace(one, offset=start + one.offset) for name, one in stored.items()}
    _require_places(placed, size)
    return metadata, placed


def _unique(pairs: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r:.100} occurs twice")
        found[name] = value
    return found


def _tensor(cursor: Cursor, blocks: BlockSizes) -> StoredTensor:
    """A tensor, its offset counted from the beginning of the data."""
    dimensions = cursor.kind()
    if not 1 <= dimensions <= _DIMENSIONS:
        raise ValueError(f"a tensor has {dimensions} dimensions, not 1 to {_DIMENSIONS}")
    shape = tuple(reversed([cursor.length() for _ in range(dimensions)]))
    kind, offset = cursor.kind(), cursor.length()
    if kind not in blocks:
        raise ValueError(f"a tensor is of type {kind}, which is not known")
    elements, nbytes = blocks[kind]
    if 0 in shape or shape[-1] % elements:
        raise ValueError(f"a tensor of {list(shape)} has no whole blocks of {elements} elements")
    return StoredTensor(kind, shape, offset, prod(shape) // elements * nbytes)


def _require_places(tensors: Mapping[str, StoredTensor], size: int) -> None:
    """Check that each tensor is inside the file, and no two share bytes."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise ValueError(f"two tensors share the bytes of {name!r:.100}")
        end = tensor.offset + tensor.nbytes
        if end > size:
            raise ValueError(f"the file ends before the end of {name!r:.100}")


def list_of_texts(header: GgufHeader, key: str) -> list[str]:
    """A list of texts; empty if the file has none. Raises UserError for another value."""
    listed = _find_list(header, key)
    if listed is None or not listed.length:
        return []
    if listed.kind != TEXT:
        raise UserError(f"{header.file}: {key} is not a list of texts", DOWNLOAD_AGAIN)
    try:
        return list(_texts(header.file, listed))
    except UnicodeDecodeError:
        raise UserError(f"{header.file}: {key} is not UTF-8", DOWNLOAD_AGAIN) from None


def list_of_numbers(header: GgufHeader, key: str) -> NDArray[np.float64]:
    """A list of numbers; empty if the file has none. Raises UserError for another value."""
    listed = _find_list(header, key)
    if listed is None or not listed.length:
        return np.empty(0)
    if listed.kind == TEXT:
        raise UserError(f"{header.file}: {key} is not a list of numbers", DOWNLOAD_AGAIN)
    dtype = np.dtype(NUMBERS[listed.kind].format)
    return np.fromfile(header.file, dtype, listed.length, offset=listed.at).astype(np.float64)


def _find_list(header: GgufHeader, key: str) -> Listed | None:
    value = header.metadata.get(key)
    if value is not None and not isinstance(value, Listed):
        raise UserError(f"{header.file}: {key} is {value!r:.100}, not a list", DOWNLOAD_AGAIN)
    return value


def _texts(file: Path, listed: Listed) -> Iterator[str]:
    content = np.memmap(file, np.uint8, "r")
    at = listed.at
    for _ in range(listed.length):
        start = at + _LENGTH.size
        at = start + int.from_bytes(content[at:start].tobytes(), "little")
        yield content[start:at].tobytes().decode()


def own_metadata(header: GgufHeader, prefix: str) -> dict[str, Value]:
    """The metadata under a prefix, without it."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in header.metadata.items() if k.startswith(start)}
