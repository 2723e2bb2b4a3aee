"""Reads, checks and writes the headers of .safetensors files. Does not read tensors' data."""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from snapexport.errors import UserError
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.untrusted import HEADER_BYTES, open_regular, parse_object

SUFFIX = ".safetensors"

_METADATA = "__metadata__"
_PREFIX = struct.Struct("<Q")
_ALIGNMENT = 64
_AND = "+"
_OTHERS = {
    b"<": "a page of HTML or XML",
    b"\x1f\x8b": "compressed by gzip",
    b"PK\3\4": "a zip file, which torch.save writes",
    b"\x80": "a pickle, which torch.save writes",
    b"GGUF": "a GGUF file",
    b"version ": "a pointer of git-lfs",
}
"""What else files begin with that have the suffix."""
_DOWNLOAD_AGAIN = "download the checkpoint again: the file is damaged or incomplete"


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor inside a .safetensors file. `dtype` as safetensors spells it: F32, F16, BF16."""

    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return prod(shape) * BY_SAFETENSORS[dtype].bytes


def header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    data_at: tuple[int, int] = (_ALIGNMENT, 0),
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The header of a file that holds tensors of these (dtype, shape), in this order.

    data_at: (m, r): the data begins at an offset o with o mod m = r.
    """
    entries: dict[str, object] = {_METADATA: metadata} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    modulus, remainder = data_at
    text += b" " * ((remainder - _PREFIX.size - len(text)) % modulus)
    return _PREFIX.pack(len(text)) + text


def header_sha256(path: Path) -> str:
    """Digest of a file's header, which lists its tensors and their offsets. Raises UserError."""
    with open_regular(path, _DOWNLOAD_AGAIN) as file:
        prefix, length = _length(path, file)
        return hashlib.sha256(prefix + file.read(length)).hexdigest()


def read_header(file: Path) -> dict[str, TensorSpan]:
    """Spans of all tensors in a file.

    Raises UserError for everything that the safetensors library refuses: unknown types, sizes that
    are not shape * item, tensors that overlap, and bytes that belong to none.
    """
    entries, start, size = _entries(file)
    _require_texts(file, entries.pop(_METADATA, None))
    spans = {name: _span(file, start, name, entry) for name, entry in entries.items()}
    for name, span in spans.items():
        _require_size(file, name, span)
    _require_dense(file, spans, start, size)
    return spans


def joined_name(first: str, count: int) -> str:
    """The name of a tensor and the next ones of its file together: `q_proj.weight+2` are three."""
    return f"{first}{_AND}{count - 1}"


def find_span(spans: Mapping[str, TensorSpan], name: str) -> TensorSpan | None:
    """The tensor of a name, or the rows of several in the place of one (`joined_name`).

    None: there is no such tensor, or those are not of one type and width.
    """
    first, joined, more = name.rpartition(_AND)
    if name in spans or not joined or not more.isdecimal() or first not in spans:
        return spans.get(name)
    of_file = [one for one in spans.values() if one.file == spans[first].file]
    after = sorted((one for one in of_file if one.offset >= spans[first].offset), key=_offset)
    some = after[: int(more) + 1]
    if len(some) <= int(more) or len({(one.dtype, one.shape[1:]) for one in some}) > 1:
        return None
    rows, nbytes = sum(one.shape[0] for one in some), sum(one.nbytes for one in some)
    return replace(some[0], nbytes=nbytes, shape=(rows, *some[0].shape[1:]))


def _offset(span: TensorSpan) -> int:
    return span.offset


def read_metadata(file: Path) -> dict[str, str]:
    """The texts of a file's header that are of no tensor. Raises UserError."""
    found = _entries(file)[0].get(_METADATA, {})
    _require_texts(file, found)
    return dict(found)


def _entries(file: Path) -> tuple[dict[str, Any], int, int]:
    """The header's entries, where the data begins, and the file's size."""
    with open_regular(file, _DOWNLOAD_AGAIN) as stream:
        prefix, length = _length(file, stream)
        raw, size = stream.read(length), os.fstat(stream.fileno()).st_size
    try:
        entries = parse_object(raw, "it", _DOWNLOAD_AGAIN)
    except UserError as error:
        raise _unreadable(file, error.message) from None
    return entries, len(prefix) + length, size


def _length(path: Path, file: BinaryIO) -> tuple[bytes, int]:
    """The length of the header, as stored and as a number. The file is read up to the header."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(_PREFIX.size)
    is_header = file.read(1) == b"{"
    file.seek(_PREFIX.size)
    for start, what in _OTHERS.items():
        if prefix.startswith(start) and not is_header:
            raise UserError(f"{path} is not a safetensors file, but {what}", _DOWNLOAD_AGAIN)
    (length,) = _PREFIX.unpack(prefix) if len(prefix) == _PREFIX.size else (size,)
    if _PREFIX.size + length > size:
        raise _size_error(path)
    if length > HEADER_BYTES:
        raise UserError(
            f"the header of {path} has {length} bytes, at most {HEADER_BYTES} are read",
            _DOWNLOAD_AGAIN,
        )
    return prefix, length


def _require_texts(file: Path, metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _unreadable(file, f"{_METADATA} does not map names to texts")


def _span(file: Path, start: int, name: str, entry: object) -> TensorSpan:
    try:
        if not isinstance(entry, dict):
            raise TypeError("no object")
        begin, end = map(_natural, entry["data_offsets"])
        shape, dtype = tuple(map(_natural, entry["shape"])), entry["dtype"]
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(file, f"the entry of {name[:200]} is wrong: {error}") from None
    if not isinstance(dtype, str) or dtype not in BY_SAFETENSORS:
        raise _unreadable(file, f"the type of {name[:200]}, {dtype!r:.100}, is not known")
    return TensorSpan(file, start + begin, end - begin, dtype, shape)


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError(f"{value!r:.100} is not a size")
    return value


def _require_size(file: Path, name: str, span: TensorSpan) -> None:
    """Compare a tensor's bytes with its type and shape."""
    if 8 * span.nbytes != prod(span.shape) * BY_SAFETENSORS[span.dtype].bits:
        raise UserError(
            f"{file} gives the tensor {name[:200]} {span.nbytes} bytes, which is not the size of "
            f"{span.dtype} {list(span.shape)!r:.200}",
            _DOWNLOAD_AGAIN,
        )


def _require_dense(file: Path, spans: dict[str, TensorSpan], start: int, size: int) -> None:
    """Every byte of the data has to belong to one tensor."""
    end = start
    for name, span in sorted(spans.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if span.offset < end:
            raise UserError(f"{file} has two tensors in the bytes of {name}", _DOWNLOAD_AGAIN)
        if span.offset > end:
            raise UserError(
                f"{file} has {span.offset - end} bytes before {name} that belong to no tensor",
                _DOWNLOAD_AGAIN,
            )
        end = span.offset + span.nbytes
    if end > size:
        raise _size_error(file)
    if end < size:
        raise UserError(
            f"{file} has {size - end} bytes at its end that belong to no tensor", _DOWNLOAD_AGAIN
        )


def _unreadable(file: Path, why: str) -> UserError:
    return UserError(f"{file} has no readable safetensors header: {why}", _DOWNLOAD_AGAIN)


def _size_error(file: Path) -> UserError:
    return UserError(f"{file} is truncated: its header names bytes past its end", _DOWNLOAD_AGAIN)
