"""Reads, checks and writes the headers of .safetensors files. Does not read tensors' data."""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from snapexport.contract.errors import UserError
from snapexport.contract.targets import DType

SUFFIX = ".safetensors"

DTYPES: dict[DType, str] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
"""How safetensors spells the types of `--dtype`."""

ITEM_BYTES = {
    "BOOL": 1,
    **dict.fromkeys(("U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

_METADATA = "__metadata__"
_PREFIX = struct.Struct("<Q")
_ALIGNMENT = 64
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
    return prod(shape) * ITEM_BYTES[dtype]


def header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], data_at: tuple[int, int] = (_ALIGNMENT, 0)
) -> bytes:
    """The header of a file that holds tensors of these (dtype, shape), in this order.

    data_at: (m, r): the data begins at an offset o with o mod m = r.
    """
    entries: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    modulus, remainder = data_at
    text += b" " * ((remainder - _PREFIX.size - len(text)) % modulus)
    return _PREFIX.pack(len(text)) + text


def header_sha256(path: Path) -> str:
    """Digest of a file's header, which lists its tensors and their offsets."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(_PREFIX.size)
        length = min(int.from_bytes(prefix, "little"), size)
        return hashlib.sha256(prefix + file.read(length)).hexdigest()


def read_header(file: Path) -> dict[str, TensorSpan]:
    """Spans of all tensors in a file. Raises UserError for an invalid header."""
    raw, start, size = _read(file)
    try:
        entries = json.loads(raw, object_pairs_hook=_without_duplicates)
        entries.pop(_METADATA, None)
        spans = {name: _span(file, start, entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file} has no readable safetensors header", _DOWNLOAD_AGAIN) from None
    for name, span in spans.items():
        _require_size(file, name, span)
    _require_apart(file, spans)
    if any(span.offset + span.nbytes > size for span in spans.values()):
        raise _truncated(file)
    return spans


def _read(file: Path) -> tuple[bytes, int, int]:
    """The header's text, where the data begins, and the file's size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(_PREFIX.size)
        (length,) = _PREFIX.unpack(prefix) if len(prefix) == _PREFIX.size else (size,)
        if _PREFIX.size + length > size:
            raise _truncated(file)
        return stream.read(length), _PREFIX.size + length, size


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _span(file: Path, start: int, entry: dict[str, Any]) -> TensorSpan:
    begin, end = map(_natural, entry["data_offsets"])
    shape, dtype = tuple(map(_natural, entry["shape"])), entry["dtype"]
    if not isinstance(dtype, str):
        raise TypeError(f"{dtype!r} is no type")
    return TensorSpan(file, start + begin, end - begin, dtype, shape)


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no size")
    return value


def _require_size(file: Path, name: str, span: TensorSpan) -> None:
    """Compare a tensor's bytes with its type and shape. Tensors of unknown types pass."""
    fits = span.dtype not in ITEM_BYTES or span.nbytes == tensor_bytes(span.dtype, span.shape)
    if span.nbytes < 0 or not fits:
        raise UserError(
            f"{file} gives the tensor {name} {span.nbytes} bytes, which is not the size of "
            f"{span.dtype} {list(span.shape)}",
            _DOWNLOAD_AGAIN,
        )


def _require_apart(file: Path, spans: dict[str, TensorSpan]) -> None:
    end = 0
    for name, span in sorted(spans.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if span.offset < end:
            raise UserError(f"{file} has two tensors in the bytes of {name}", _DOWNLOAD_AGAIN)
        end = span.offset + span.nbytes


def _truncated(file: Path) -> UserError:
    return UserError(f"{file} is truncated: its header names bytes past its end", _DOWNLOAD_AGAIN)
