"""Put the checkpoint's bytes where the graphs can read them, without holding them in memory.

A shard whose dtype serves is hard-linked, so that no byte is copied. Tensors of another dtype are
converted, tensor by tensor, block by block, into one more .safetensors file. A file that exists is
never written to: a hard link is the user's own checkpoint.
"""

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from snapexport.contract.errors import UserError
from snapexport.contract.manifest import DType
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
_NO_LINKS_HERE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)

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
    links = _link_all({span.file for span in fits.values()}, directory)
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
        _link(file, directory / file.name)


def _readable(name: str, span: TensorSpan) -> TensorSpan:
    if span.dtype not in _NUMPY:
        raise UserError(
            f"the tensor {name} is stored as {span.dtype}",
            f"only {', '.join(_NUMPY)} weights are read: start from the original checkpoint",
        )
    return span


def _moved(span: TensorSpan, file: Path) -> TensorSpan:
    return TensorSpan(file, span.offset, span.nbytes, span.dtype, span.shape)


def _link_all(files: Iterable[Path], directory: Path) -> dict[Path, Path]:
    """Link every file under a name of its own: resolved shards may share theirs."""
    links: dict[Path, Path] = {}
    taken = {CONVERTED}
    for index, file in enumerate(sorted(files)):
        # A blob of the Hub's cache has a bare hash for its name; readers go by the suffix.
        name = file.name if file.suffix == ".safetensors" else f"{file.name}.safetensors"
        name = name if name not in taken else f"{index}-{name}"
        taken.add(name)
        _link(file, directory / name)
        links[file] = directory / name
    return links


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS_HERE:
            raise
        shutil.copyfile(source, target)


def _convert(spans: dict[str, TensorSpan], dtype: str, target: Path, progress: Progress) -> None:
    with target.open("xb") as out:
        out.write(_header(spans, dtype))
        for name, span in spans.items():
            for block in _blocks(span):
                out.write(_cast(name, block, dtype).tobytes())
                progress(block.size * _NUMPY[dtype].itemsize)


def _cast(name: str, block: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    with np.errstate(all="ignore"):
        cast = block.astype(_NUMPY[dtype])
    # Widening to fp32 can't overflow, and is the one that has to be fast.
    if dtype != "F32" and (np.isinf(cast) & ~np.isinf(block)).any():
        raise UserError(
            f"the tensor {name} has values that {dtype} cannot hold", "use --dtype fp32"
        )
    return cast


def _header(spans: dict[str, TensorSpan], dtype: str) -> bytes:
    entries: dict[str, object] = {}
    end = 0
    for name, span in spans.items():
        begin, end = end, end + span.nbytes // _NUMPY[span.dtype].itemsize * _NUMPY[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": span.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _blocks(span: TensorSpan) -> Iterator[NDArray[np.generic]]:
    dtype = _NUMPY[span.dtype]
    data = np.memmap(span.file, dtype, "r", span.offset, shape=(span.nbytes // dtype.itemsize,))
    for start in range(0, data.size, _BLOCK):
        yield data[start : start + _BLOCK]
