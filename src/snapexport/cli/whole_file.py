"""Writes a text to the file that a flag names, whole or not at all."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from snapexport.errors import UserError
from snapexport.files import whole as files


@contextmanager
def whole_file(path: Path, flag: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes text. `path` changes when the block ends without error.

    Raises a UserError before the block for a path that cannot be written.
    """
    target = Path(os.path.realpath(path))  # a symlink stays one
    partial = files.partial_path(target)
    with _write_errors(path, flag):
        _require_replaceable(target, flag)
        partial.touch()

    def write(text: str) -> None:
        with _write_errors(path, flag):
            partial.write_bytes(text.encode())  # as bytes: no newline is translated

    try:
        yield write
        with _write_errors(path, flag):
            files.finish(target)
    finally:
        partial.unlink(missing_ok=True)


def _require_replaceable(target: Path, flag: str) -> None:
    """Refuse a pipe or a device, which a rename would replace."""
    if target.exists() and not target.is_file():
        raise UserError(f"{target} is not a file", f"name a file for {flag}")


@contextmanager
def _write_errors(path: Path, flag: str) -> Iterator[None]:
    """Turn an OSError into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", f"check {flag}") from None
