"""Lays the rows of several weights one after another in one file, for readers of all of them.

The file lists each weight under its own name, and `find_span` finds all of them together.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from snapexport.exporter.weights.tensor_file import Progress
from snapexport.files.safetensors import SUFFIX, TensorSpan, header

Joined = Mapping[str, tuple[str, ...]]
"""{name of all together: the weights in order}, as `joined_name` names them."""
_BLOCK = 1 << 24


def separate(names: set[str], joined: Joined) -> set[str]:
    """The weights' own names."""
    return {one for name in names for one in joined.get(name, (name,))}


def join_files(
    name: str, weights: Mapping[str, TensorSpan], directory: Path, progress: Progress
) -> tuple[Path, str]:
    """Move weights with a file each into one. Returns it, and its SHA-256."""
    path, digest = directory / f"{name}{SUFFIX}", hashlib.sha256()
    entries = {one: (span.dtype, span.shape) for one, span in weights.items()}
    with path.open("xb") as out:
        for data in (header(entries), *_data(weights)):
            out.write(data)
            digest.update(data)
            progress(len(data))
    for span in weights.values():
        span.file.unlink()
    return path, digest.hexdigest()


def _data(weights: Mapping[str, TensorSpan]) -> Iterator[bytes]:
    for span in weights.values():
        with span.file.open("rb") as source:
            source.seek(span.offset)
            for start in range(0, span.nbytes, _BLOCK):
                yield source.read(min(_BLOCK, span.nbytes - start))
