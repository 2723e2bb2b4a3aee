"""Writes a page to a file that the user named, and says what is wrong with the name."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from snapexport.contract import files
from snapexport.contract.errors import UserError


@contextmanager
def whole_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes text to `path`, which changes when the block ends without error.

    A path that cannot be written is told at once, before the work. Raises UserError.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    partial = files.unfinished(target)
    with _told(path):
        _require_replaceable(target)
        partial.touch()

    def write(text: str) -> None:
        with _told(path):
            partial.write_bytes(text.encode())  # as bytes: no newline is translated

    try:
        yield write
        with _told(path):
            files.finish(target)
    finally:
        partial.unlink(missing_ok=True)


def _require_replaceable(target: Path) -> None:
    """A rename would put a file in the place of a pipe or a device."""
    if target.exists() and not target.is_file():
        raise UserError(f"{target} is not a file", "name a file for --html")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "check --html") from None
