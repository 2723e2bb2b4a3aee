"""Writes directories atomically: in a hidden directory beside the target, then by one rename.

`.NAME.partial-*/snapexport.unfinished`   marks it as ours; says what is being exchanged
`.NAME.partial-*/content`                 what is to appear at the target
`.NAME.partial-*/former`                  the replaced target, where names can't be exchanged

It is locked while its process lives. The next process removes unlocked ones that are marked.
"""

import ctypes
import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snapexport.contract.manifest import MANIFEST
from snapexport.errors import UserError
from snapexport.files.whole import locked, write_whole

MARKER, CONTENT, FORMER = "snapexport.unfinished", "content", "former"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def staged(
    target: Path, overwrite: bool, marker: str = MANIFEST, kind: str = "a build"
) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` when the block ends without error.

    Overwrites only a directory that contains the file `marker`, and that was there at the start.
    """
    target = Path(os.path.normpath(target.absolute()))
    living = _remove_leftovers(target)
    former = _former(target, overwrite, marker, kind)
    if any(".partial-" in directory.name for directory in living):
        raise UserError(
            f"another process is writing {target}", "wait until it ends, or choose another --out"
        )
    with _parents(target), _hidden(target, "partial") as directory:
        yield directory / CONTENT
        if former is None:
            _appear(directory / CONTENT, target)
        else:
            _replace(directory, target, former, marker)


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Yield an empty hidden directory beside a build; it is removed at the end."""
    beside = Path(os.path.normpath(beside.absolute()))
    _remove_leftovers(beside)
    with _hidden(beside, "scratch") as directory:
        yield directory / CONTENT


def _former(target: Path, overwrite: bool, marker: str, kind: str) -> str | None:
    """The identity of what is to be replaced; None if there is nothing."""
    if not os.path.lexists(target):
        return None
    if not overwrite:
        raise UserError(f"{target} exists already", "choose another --out, or pass --overwrite")
    if not _is_replaceable(target, marker):
        raise UserError(f"{target} is not {kind}: it is not overwritten", "choose another --out")
    return _identity(target)


def _is_replaceable(target: Path, marker: str) -> bool:
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
        with suppress(OSError):  # somebody else put something there
            for parent in missing:
                parent.rmdir()
        raise


@contextmanager
def _hidden(target: Path, purpose: str) -> Iterator[Path]:
    """Yield a new hidden directory, locked; it is removed at the end."""
    directory = target.parent / f".{target.name}.{purpose}-{secrets.token_hex(4)}"
    try:
        directory.mkdir(mode=0o700)
        # The marker comes after the lock: others remove only what is marked and not locked.
        with locked(directory):
            try:
                (directory / MARKER).touch()
                (directory / CONTENT).mkdir()
                yield directory
            finally:
                _discard(directory, target)
    finally:  # a signal came before the lock was held, and the directory is empty
        with suppress(OSError):
            directory.rmdir()


def _appear(content: Path, target: Path) -> None:
    try:
        content.rename(target)  # replaces nothing but an empty directory, by POSIX
    except OSError:
        if not os.path.lexists(target):
            raise
        raise UserError(
            f"{target} appeared while it was being written, and is left as it is",
            "choose another --out, or pass --overwrite",
        ) from None


def _replace(directory: Path, target: Path, former: str, marker: str) -> None:
    """Put the content in the place of the former target, which is removed with `directory`."""
    content = directory / CONTENT
    write_whole(directory / MARKER, f"{former} {_identity(content)}")
    try:
        replaced = content if _exchange(content, target) else target.rename(directory / FORMER)
    except FileNotFoundError:  # the former target was removed meanwhile
        _appear(content, target)
        return
    if _identity(replaced) != former or not _is_replaceable(replaced, marker):
        if replaced == content:
            _exchange(content, target)
        write_whole(directory / MARKER, _identity(content))  # `_discard` puts the other back
        raise UserError(
            f"{target} was replaced while it was being written, and is left as it is",
            "choose another --out, or build again",
        )
    if replaced != content:
        _appear(content, target)


def _exchange(source: Path, target: Path) -> bool:
    """Exchange two names in one step; False where system or file system (NFS) can't."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = (os.fsencode(source), os.fsencode(target))
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    if not os.path.lexists(target):
        raise FileNotFoundError(target)
    return False


def _remove_leftovers(target: Path) -> list[Path]:
    """Remove what killed processes left beside the target, with a note; return living ones'."""
    living = []
    digits = "[0-9a-f]" * 8
    for directory in sorted(target.parent.glob(f".{glob.escape(target.name)}.*-{digits}")):
        try:
            with locked(directory):
                if not (directory / MARKER).is_file():
                    directory.rmdir()  # refuses one that is not empty: a user's own
                elif _discard(directory, target):
                    _note(f"removed {directory}: its process was killed")
        except BlockingIOError:
            living.append(directory)
        except OSError:  # a user's own, or removed just now
            continue
    return living


def _discard(directory: Path, target: Path) -> bool:
    """Remove a hidden directory, but nothing that isn't ours; return whether it is gone."""
    former = directory / FORMER
    if os.path.lexists(former) and not os.path.lexists(target):
        former.rename(target)
        _note(f"put back {target}: the process that was replacing it ended too early")
    marker = directory / MARKER
    exchanged = marker.read_text().split() if marker.is_file() else []
    for path in (directory / CONTENT, former):
        if exchanged and os.path.lexists(path) and _identity(path) not in exchanged:
            _note(f"{path} came to {target} while that was being replaced: it is kept")
            return False
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def _identity(path: Path) -> str:
    """The inode of a path, its links not followed; it stays the same under other names."""
    status = path.lstat()
    return f"{status.st_dev}:{status.st_ino}"


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
