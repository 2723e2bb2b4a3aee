"""Writes directories atomically.

Files are written to a hidden directory beside the target. Its content takes the target's name at
the end, by one rename that never replaces what it was not told to, and is removed on failure.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snapexport.build.leftovers import (
    CONTENT,
    REPLACED,
    hidden,
    identity,
    is_being_written,
    mark,
    remove_leftovers,
)
from snapexport.build.renames import exchange, rename_new
from snapexport.contract.manifest import MANIFEST
from snapexport.errors import UserError


@contextmanager
def staged(
    target: Path, overwrite: bool, marker: str = MANIFEST, kind: str = "a build"
) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` when the block ends without error.

    Overwrites only a directory that contains the file `marker`, and that was there at the start.
    """
    target = Path(os.path.normpath(target.absolute()))
    remove_leftovers(target)
    former = _free(target, overwrite, marker, kind)
    if is_being_written(target):
        raise UserError(
            f"another process is writing {target}", "wait until it ends, or choose another --out"
        )
    with _parents(target), hidden(target, "writing") as directory:
        content = directory / CONTENT
        content.mkdir()
        yield content
        if former is None:
            _appear(content, target)
        else:
            _replace(directory, target, former, marker, kind)


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Yield an empty hidden directory beside a build; it is removed at the end."""
    beside = Path(os.path.normpath(beside.absolute()))
    remove_leftovers(beside)
    with hidden(beside, "scratch") as directory:
        content = directory / CONTENT
        content.mkdir()
        yield content


def _free(target: Path, overwrite: bool, marker: str, kind: str) -> str | None:
    """The identity of what is to be replaced; None if there is nothing."""
    if not os.path.lexists(target):
        return None
    if not overwrite:
        raise UserError(f"{target} exists already", "choose another --out, or pass --overwrite")
    if not _replaceable(target, marker):
        raise UserError(f"{target} is not {kind}: it is not overwritten", "choose another --out")
    return identity(target)


def _replaceable(target: Path, marker: str) -> bool:
    """Whether it is a directory, itself and not by a link, that is empty or has the marker."""
    if target.is_symlink() or not target.is_dir():
        return False
    return not any(target.iterdir()) or (target / marker).is_file()


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Make the target's missing parents; remove them again if the block fails."""
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{target.parent} is not a directory", "choose another --out") from None
    try:
        yield
    except BaseException:
        for parent in missing:
            _remove_if_empty(parent)
        raise


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):  # somebody else put something there
        directory.rmdir()


def _appear(content: Path, target: Path) -> None:
    try:
        rename_new(content, target)
    except FileExistsError:
        raise UserError(
            f"{target} appeared while it was being written, and is left as it is",
            "choose another --out, or pass --overwrite",
        ) from None


def _replace(directory: Path, target: Path, former: str, marker: str, kind: str) -> None:
    """Put the content in the place of the former target. The latter is removed with `directory`.

    A kill leaves either of them at the target.
    """
    content = directory / CONTENT
    mark(directory, "swapping", former, identity(content))
    try:
        replaced = content if exchange(content, target) else _moved(target, directory / REPLACED)
    except FileNotFoundError:  # the former target was removed meanwhile
        _appear(content, target)
        return
    if identity(replaced) != former or not _replaceable(replaced, marker):
        if replaced == content:
            exchange(content, target)
        else:
            mark(directory, "swapping", identity(content))  # and `hidden` puts the other back
        raise UserError(
            f"{target} was replaced while {kind} was being written for it, and is left as it is",
            "choose another --out, or build again",
        )
    if replaced != content:
        _appear(content, target)


def _moved(target: Path, place: Path) -> Path:
    """Move the target aside. After a kill the next process puts it back."""
    target.rename(place)
    return place
