"""Reads and checks the header of a GGUF file: its metadata, and where each tensor lies.

Whatever a loop or an allocation depends on is bounded before it is used. Knows no architecture.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TypeVar

from snapexport.errors import UserError
from snapexport.exporter.gguf.cursor import Cursor, Value
from snapexport.files.untrusted import HEADER_BYTES, open_regular

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
        """Whether its tensors lie in several files."""
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
                return GgufHeader(path, *_parsed(content, size, blocks))
    except FileNotFoundError:
        raise UserError(f"no such file: {path}", "check the path of the GGUF file") from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as GGUF: {error}", DOWNLOAD_AGAIN) from None


def _parsed(
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
        raise ValueError(f"{_ALIGNMENT} is {alignment!r:.100}, no power of two up to {1 << 20}")
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
    """Each tensor lies inside the file, and no two share bytes."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise ValueError(f"two tensors lie in the bytes of {name!r:.100}")
        end = tensor.offset + tensor.nbytes
        if end > size:
            raise ValueError(f"the file ends before the end of {name!r:.100}")
