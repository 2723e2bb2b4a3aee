"""Writes directories atomically.

Files are written to a hidden directory beside the target, which is renamed at the end and removed
on failure. A process locks its hidden directory; the next process removes unlocked ones.
"""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snapexport.contract.errors import UserError
from snapexport.contract.manifest import MANIFEST


@contextmanager
def staged(
    target: Path, overwrite: bool, marker: str = MANIFEST, kind: str = "a build"
) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` when the block ends without error.

    Overwrites only a directory that contains the file `marker`.
    """
    target = Path(os.path.normpath(target.absolute()))
    _require_free(target, overwrite, marker, kind)
    with _parents(target):
        _remove_abandoned(target)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        try:
            with _locked(partial):
                yield partial
                partial.chmod(0o777 & ~_umask())
                _swap(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Yield an empty hidden directory beside a build; it is removed at the end."""
    beside = Path(os.path.normpath(beside.absolute()))
    _remove_abandoned(beside)
    directory = Path(tempfile.mkdtemp(prefix=f".{beside.name}.partial-", dir=beside.parent))
    try:
        with _locked(directory):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _require_free(target: Path, overwrite: bool, marker: str, kind: str) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise UserError(f"{target} exists already", "choose another --out, or pass --overwrite")
    if not target.is_dir() or (any(target.iterdir()) and not (target / marker).is_file()):
        raise UserError(f"{target} is not {kind}: it is not overwritten", "choose another --out")


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


def _remove_abandoned(target: Path) -> None:
    for partial in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        with suppress(OSError), _locked(partial):  # not to be had: its process lives
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock. Raises OSError if another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _swap(partial: Path, target: Path) -> None:
    """Rename `partial` to the target. A kill in between leaves the old build as a hidden one."""
    if not target.exists():
        partial.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.replaced-", dir=target.parent))
    target.rename(old / target.name)
    partial.rename(target)
    shutil.rmtree(old)
