"""Reads lists of a GGUF file's metadata, which the header's reader checked and stepped over."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.gguf.cursor import NUMBERS, TEXT, Listed
from snapexport.exporter.gguf.header import DOWNLOAD_AGAIN, GgufHeader

_LENGTH = np.dtype("<u8")


def texts(header: GgufHeader, key: str) -> list[str]:
    """A list of texts; empty if the file has none. Raises UserError for another value."""
    listed = _listed(header, key)
    if listed is None or not listed.length:
        return []
    if listed.kind != TEXT:
        raise UserError(f"{header.file}: {key} is no list of texts", DOWNLOAD_AGAIN)
    try:
        return list(_texts(header.file, listed))
    except UnicodeDecodeError:
        raise UserError(f"{header.file}: {key} is not UTF-8", DOWNLOAD_AGAIN) from None


def numbers(header: GgufHeader, key: str) -> NDArray[np.float64]:
    """A list of numbers; empty if the file has none. Raises UserError for another value."""
    listed = _listed(header, key)
    if listed is None or not listed.length:
        return np.empty(0)
    if listed.kind == TEXT:
        raise UserError(f"{header.file}: {key} is no list of numbers", DOWNLOAD_AGAIN)
    dtype = np.dtype(NUMBERS[listed.kind].format)
    return np.fromfile(header.file, dtype, listed.length, offset=listed.at).astype(np.float64)


def _listed(header: GgufHeader, key: str) -> Listed | None:
    value = header.metadata.get(key)
    if value is not None and not isinstance(value, Listed):
        raise UserError(f"{header.file}: {key} is {value!r:.100}, not a list", DOWNLOAD_AGAIN)
    return value


def _texts(file: Path, listed: Listed) -> Iterator[str]:
    content = np.memmap(file, np.uint8, "r")
    at = listed.at
    for _ in range(listed.length):
        start = at + _LENGTH.itemsize
        at = start + int.from_bytes(content[at:start].tobytes(), "little")
        yield content[start:at].tobytes().decode()
