"""Put the checkpoint's bytes where the graphs can read them, without holding them in memory.

A shard whose dtype serves is hard-linked, so that no byte is copied. Tensors of another dtype are
converted, tensor by tensor, block by block, into one more .safetensors file.
"""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from snapexport.contract.build_directory import header_sha256_of, sha256_of
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import DType, WeightFile
from snapexport.exporter.checkpoint import Checkpoint, TensorSpan, read_header

WEIGHTS = "weights"
CONVERTED = "converted.safetensors"
SAFETENSORS_DTYPE: dict[DType, str] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
_NUMPY = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_BLOCK = 1 << 24  # elements converted at a time
_HEADER_ALIGNMENT = 64
_HASHED_BYTES = 1 << 30  # a larger file is only hashed if its checkpoint brings the hash
_SHA256 = re.compile("[0-9a-f]{64}")

Progress = Callable[[int], None]
"""Called with the number of bytes that were written."""


@dataclass(frozen=True, slots=True)
class PlacedWeights:
    """Where each tensor lies now, and the files that hold them."""

    tensors: dict[str, TensorSpan]
    sources: dict[Path, Path]
    """Each file in the build, and the checkpoint's file that it is, or itself where converted."""


def place(
    checkpoint: Checkpoint, wanted: Iterable[str], dtype: DType, directory: Path, progress: Progress
) -> PlacedWeights:
    """Make `directory` hold every `wanted` tensor as `dtype`. Raises UserError."""
    directory.mkdir(parents=True)
    spans = {name: _readable(name, checkpoint.tensors[name]) for name in sorted(wanted)}
    fits = {n: s for n, s in spans.items() if s.dtype == SAFETENSORS_DTYPE[dtype]}
    links = {file: _link(file, directory) for file in sorted({s.file for s in fits.values()})}
    placed = {n: _moved(s, links[s.file]) for n, s in fits.items()}
    rest = {n: s for n, s in spans.items() if n not in fits}
    if rest:
        converted = directory / CONVERTED
        _convert(rest, SAFETENSORS_DTYPE[dtype], converted, progress)
        placed |= read_header(converted)
        links[converted] = converted
    return PlacedWeights(placed, {target: source for source, target in links.items()})


def link_again(source: Path, directory: Path) -> None:
    """The placed files a second time: ONNX Runtime reads only below the graph's own folder."""
    directory.mkdir(parents=True)
    for file in source.iterdir():
        _link(file, directory)


def describe(placed: PlacedWeights, directory: Path) -> list[WeightFile]:
    """The manifest's entries for the files placed in the build `directory`."""
    return [
        WeightFile(
            file=file.relative_to(directory).as_posix(),
            size=file.stat().st_size,
            header_sha256=header_sha256_of(file),
            sha256=_own_hash(source) or _cheap_hash(file),
        )
        for file, source in placed.sources.items()
    ]


def _own_hash(source: Path) -> str | None:
    """The hash that the Hub gave a file: the name of its blob, or the etag kept beside it."""
    if _SHA256.fullmatch(source.name):
        return source.name
    metadata = source.parent / ".cache/huggingface/download" / f"{source.name}.metadata"
    lines = metadata.read_text().splitlines() if metadata.is_file() else []
    return lines[1] if len(lines) > 1 and _SHA256.fullmatch(lines[1]) else None


def _cheap_hash(file: Path) -> str | None:
    return sha256_of(file) if file.stat().st_size <= _HASHED_BYTES else None


def _readable(name: str, span: TensorSpan) -> TensorSpan:
    if span.dtype not in _NUMPY:
        raise UserError(
            f"the tensor {name} is stored as {span.dtype}",
            f"only {', '.join(_NUMPY)} weights are read: start from the original checkpoint",
        )
    return span


def _moved(span: TensorSpan, file: Path) -> TensorSpan:
    return TensorSpan(file, span.offset, span.nbytes, span.dtype, span.shape)


def _link(source: Path, directory: Path) -> Path:
    # A blob of the Hub's cache has a hash for its name; the suffix is what readers go by.
    target = directory / source.with_suffix(".safetensors").name
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
    return target


def _convert(spans: dict[str, TensorSpan], dtype: str, target: Path, progress: Progress) -> None:
    with target.open("wb") as out:
        out.write(_header(spans, dtype))
        for span in spans.values():
            for block in _blocks(span):
                out.write(block.astype(_NUMPY[dtype]).tobytes())
                progress(block.size * _NUMPY[dtype].itemsize)


def _header(spans: dict[str, TensorSpan], dtype: str) -> bytes:
    entries: dict[str, object] = {}
    end = 0
    for name, span in spans.items():
        begin, end = end, end + span.nbytes // _NUMPY[span.dtype].itemsize * _NUMPY[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": span.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _blocks(span: TensorSpan) -> Iterator[np.ndarray]:
    dtype = _NUMPY[span.dtype]
    data = np.memmap(span.file, dtype, "r", span.offset, shape=(span.nbytes // dtype.itemsize,))
    for start in range(0, data.size, _BLOCK):
        yield data[start : start + _BLOCK]
