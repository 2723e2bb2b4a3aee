"""Writes files atomically: to a temporary name beside the file, then by one rename. Locks folders.

`build.staging` does so for directories.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snapexport.files.untrusted import open_regular

PARTIAL = ".partial"
"""Suffix of an unfinished file's name."""

_BLOCK = 1 << 22


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to. The file takes `path`'s place when the block ends without error."""
    partial = partial_path(path)
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


def partial_path(path: Path) -> Path:
    """The temporary name of `path`, for work that `whole_file` does not fit; ends with `finish`."""
    return path.with_name(path.name + PARTIAL)


def finish(path: Path) -> None:
    """Rename `partial_path(path)` to `path`."""
    partial_path(path).replace(path)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock. Raises BlockingIOError if another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Digest of a regular file, read in blocks."""
    digest = hashlib.sha256()
    with open_regular(path, "replace it by the file that was there") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
