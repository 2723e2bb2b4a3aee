"""Writes directories atomically: in a hidden directory beside the target, then by one rename.

`.NAME.partial-*/content`                 what is to appear at the target, then what was there
`.NAME.partial-*/former`                  the latter, for a moment, where names can't be exchanged
`.NAME.partial-*/snapexport.unfinished`   says that all of it is ours; missing while names change

It is locked while its process lives. The next process removes unlocked ones, unless a user's
directory came into them.
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
from snapexport.files.whole import locked

MARKER, CONTENT, FORMER = "snapexport.unfinished", "content", "former"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def staged(
    target: Path, overwrite: bool, marker: str = MANIFEST, kind: str = "a build"
) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` when the block ends without error.

    Overwrites only a directory that contains the file `marker`, and that was there at the start.
    """
    target = _normal(target)
    with _hidden_folder(target, "partial", marker) as content:
        former = _former(target, overwrite, marker, kind)
        yield content
        if former and os.path.lexists(target):
            _replace(content, target, former, marker)
        else:
            _appear(content, target)


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Yield an empty hidden directory beside a build; it is removed at the end."""
    with _hidden_folder(_normal(beside), "scratch", MANIFEST) as content:
        yield content


def require_place(
    target: Path, overwrite: bool, marker: str = MANIFEST, kind: str = "a build"
) -> None:
    """Raise the UserError of `staged` for a place that it could not take, before any work."""
    target = _normal(target)
    if not os.access(home := _home(target), os.W_OK):
        raise UserError(f"{home} cannot be written to", "choose another --out")
    _former(target, overwrite, marker, kind)


def _normal(target: Path) -> Path:
    return Path(os.path.normpath(target.absolute()))


def _home(target: Path) -> Path:
    """The nearest parent that exists."""
    home = next(parent for parent in target.parents if os.path.lexists(parent))
    if not home.is_dir():
        raise UserError(f"{home} is not a directory", "choose another --out")
    return home


def _former(target: Path, overwrite: bool, marker: str, kind: str) -> os.stat_result | None:
    """The identity of the directory to replace; None if there is none."""
    if not os.path.lexists(target):
        return None
    if not overwrite:
        raise UserError(f"{target} exists already", "choose another --out, or pass --overwrite")
    if not _is_replaceable(target, marker):
        raise UserError(f"{target} is not {kind}: it is not overwritten", "choose another --out")
    return target.lstat()


def _is_replaceable(target: Path, marker: str) -> bool:
    """Whether it is a directory, itself and not by a link, that is empty or has the marker."""
    if target.is_symlink() or not target.is_dir():
        return False
    return not any(target.iterdir()) or (target / marker).is_file()


@contextmanager
def _hidden_folder(target: Path, purpose: str, marker: str) -> Iterator[Path]:
    """Yield `content` in a new hidden directory, locked; it is removed at the end.

    It is in the nearest parent of the target that exists. Those of killed processes are removed.
    """
    home = _home(target)
    name = f".{'.'.join(target.relative_to(home).parts)}"
    _remove_leftovers(home, name, target, marker)
    directory = home / f"{name}.{purpose}-{secrets.token_hex(4)}"
    try:
        directory.mkdir(mode=0o700)
        with locked(directory):
            try:
                (directory / MARKER).touch()
                (directory / CONTENT).mkdir()
                yield directory / CONTENT
            finally:
                _discard(directory, target, marker)
    finally:  # a signal came before the lock was held, and the directory is empty
        with suppress(OSError):
            directory.rmdir()


def _appear(content: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        content.rename(target)  # replaces nothing but an empty directory, by POSIX
    except OSError:
        if not os.path.lexists(target):
            raise
        raise UserError(
            f"{target} appeared while it was being written, and is left as it is",
            "choose another --out, or pass --overwrite",
        ) from None


def _replace(content: Path, target: Path, former: os.stat_result, marker: str) -> None:
    """Exchange the two, unless something other than `former` is at the target by now."""
    content.with_name(MARKER).unlink()
    _exchange(content, target)
    if not os.path.samestat(content.lstat(), former) or not _is_replaceable(content, marker):
        _exchange(content, target)
        raise UserError(
            f"{target} was replaced while it was being written, and is left as it is",
            "choose another --out, or build again",
        )


def _exchange(content: Path, target: Path) -> None:
    """Exchange two names: in one step, or by a third where system or file system (NFS) can't."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = os.fsencode(content), os.fsencode(target)
    if rename and not rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        return
    former = target.rename(content.with_name(FORMER))
    content.rename(target)
    former.rename(content)


def _remove_leftovers(home: Path, name: str, target: Path, marker: str) -> None:
    """Remove what killed processes left, with a note. Raises UserError if one writes the target."""
    for directory in sorted(home.glob(f"{glob.escape(name)}.*-{'[0-9a-f]' * 8}")):
        try:
            with locked(directory):
                if _discard(directory, target, marker):
                    _note(f"removed {directory}: its process was killed")
        except BlockingIOError:
            if ".partial-" in directory.name:
                raise UserError(
                    f"another process is writing {target}",
                    "wait until it ends, or choose another --out",
                ) from None
        except OSError:
            continue  # no directory, or removed just now


def _discard(directory: Path, target: Path, marker: str) -> bool:
    """Remove a hidden directory, but nothing that isn't ours; return whether it is gone."""
    former = directory / FORMER
    if os.path.lexists(former) and not os.path.lexists(target):
        former.rename(target)
        _note(f"put back {target}: the process that was replacing it ended too early")
    names = {path.name for path in directory.iterdir()}
    ours = {name for name in names & {CONTENT, FORMER} if _is_replaceable(directory / name, marker)}
    if MARKER not in names and names != ours:
        _note(f"{directory} is kept: a directory of yours may have come into it")
        return False
    (directory / MARKER).touch()  # last to go, so that a process killed here is cleaned up after
    for path in (directory / CONTENT, former, directory):
        shutil.rmtree(path, ignore_errors=True)
    return not directory.exists()


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
