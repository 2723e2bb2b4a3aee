"""Put the checkpoint's bytes where the graphs can read them, without holding them in memory.

A shard whose dtype serves is hard-linked, so that no byte is copied. Tensors of another dtype are
converted, tensor by tensor, block by block, into one more .safetensors file. A file that exists is
never written to: a hard link is the user's own checkpoint.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.errors import UserError
from snapexport.contract.targets import DType
from snapexport.exporter import int4
from snapexport.exporter.checkpoint import Checkpoint, TensorSpan, read_header
from snapexport.exporter.tensor_file import NUMPY_DTYPE, SAFETENSORS_DTYPE, blocks, header

WEIGHTS = "weights"
CONVERTED = "converted.safetensors"
QUANTIZED = "int4.safetensors"
_FLOATS = tuple(SAFETENSORS_DTYPE.values())
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
    """Make `directory` hold every `wanted` tensor as `dtype`. Raises UserError.

    What `int4` calls a part of a tensor is made from that tensor.
    """
    directory.mkdir(parents=True)
    names = set(wanted)
    to_quantize = {int4.whole(name) for name in names if int4.is_part(name)}
    plain = {name for name in names if not int4.is_part(name)}
    stored = SAFETENSORS_DTYPE[dtype]
    spans = {name: _readable(name, checkpoint.tensors[name]) for name in sorted(plain)}
    # What is left of a checkpoint whose matrices are quantized is not worth its whole file.
    fits = {n: s for n, s in spans.items() if s.dtype == stored and not to_quantize}
    links = _link_all({span.file for span in fits.values()}, directory)
    placed = {n: _moved(s, links[s.file]) for n, s in fits.items()}
    if rest := {n: s for n, s in spans.items() if n not in fits}:
        placed |= _convert(rest, stored, directory / CONVERTED, progress)
    if to_quantize:
        whole = {n: _readable(n, checkpoint.tensors[n]) for n in sorted(to_quantize)}
        placed |= int4.write(whole, stored, directory / QUANTIZED, progress)
    made = {span.file for span in placed.values()} - set(links.values())
    sources = {target: source for source, target in links.items()}
    return PlacedWeights(placed, sources | {file: file for file in sorted(made)})


def link_again(source: Path, directory: Path) -> None:
    """The placed files a second time: ONNX Runtime reads only below the graph's own folder."""
    directory.mkdir(parents=True)
    for file in source.iterdir():
        _link(file, directory / file.name)


def _readable(name: str, span: TensorSpan) -> TensorSpan:
    if span.dtype not in _FLOATS:
        raise UserError(
            f"the tensor {name} is stored as {span.dtype}",
            f"only {', '.join(_FLOATS)} weights are read: start from the original checkpoint",
        )
    return span


def _moved(span: TensorSpan, file: Path) -> TensorSpan:
    return TensorSpan(file, span.offset, span.nbytes, span.dtype, span.shape)


def _link_all(files: Iterable[Path], directory: Path) -> dict[Path, Path]:
    """Link every file under a name of its own: resolved shards may share theirs."""
    links: dict[Path, Path] = {}
    taken = {CONVERTED, QUANTIZED}
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


def _convert(
    spans: dict[str, TensorSpan], dtype: str, target: Path, progress: Progress
) -> dict[str, TensorSpan]:
    with target.open("xb") as out:
        out.write(header({name: (dtype, span.shape) for name, span in spans.items()}))
        for name, span in spans.items():
            for block in blocks(span):
                out.write(_cast(name, block, dtype).tobytes())
                progress(block.size * NUMPY_DTYPE[dtype].itemsize)
    return read_header(target)


def _cast(name: str, block: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    with np.errstate(all="ignore"):
        cast = block.astype(NUMPY_DTYPE[dtype])
    # Widening to fp32 can't overflow, and is the one that has to be fast.
    if dtype != "F32" and (np.isinf(cast) & ~np.isinf(block)).any():
        raise UserError(
            f"the tensor {name} has values that {dtype} cannot hold", "use --dtype fp32"
        )
    return cast
