"""Writes files that appear whole or not at all: beside their place, then by one rename.

Directories that do so are `builder.staging`'s.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""What the name of an unfinished file ends with."""

_BLOCK = 1 << 22


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to. The file takes `path`'s place when the block ends without error."""
    partial = unfinished(path)
    try:
        yield partial
        finish(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write or replace a file. Text is UTF-8, and its newlines stay as they are."""
    with whole_file(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file's bytes."""
    with whole_file(path) as partial:
        shutil.copyfile(source, partial)


def unfinished(path: Path) -> Path:
    """Where `path` is written before `finish`, for work that outlives a block."""
    return path.with_name(path.name + PARTIAL)


def finish(path: Path) -> None:
    """Put what was written to `unfinished(path)` in its place."""
    unfinished(path).replace(path)


def sha256_of(path: Path) -> str:
    """Digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
