"""Hidden directories beside a target, in which it is written: marked as ours, and locked.

`.NAME.partial-*/snapexport.unfinished`   the marker and what its process was doing
`.NAME.partial-*/content`                 what is to appear at the target
`.NAME.partial-*/replaced`                the former target, where two names can't be exchanged

The lock ends with its process. The next process removes unlocked directories that have the marker;
others are a user's own.
"""

import fcntl
import glob
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from snapexport.build.renames import rename_new
from snapexport.files.whole import unfinished, write_whole

MARKER = "snapexport.unfinished"
CONTENT, REPLACED = "content", "replaced"

_MADE = re.compile(r"\.partial-[a-z0-9_]{8}$")
"""Names by `_new_name`, and by `tempfile.mkdtemp` in former versions."""

Purpose = Literal["scratch", "writing", "swapping"]
"""scratch: for the process alone. writing: to appear at the target. swapping: the content may be
the former target by now."""


@contextmanager
def hidden(target: Path, purpose: Purpose) -> Iterator[Path]:
    """Yield a new hidden directory, locked; it is removed at the end."""
    directory = _new_name(target)
    try:
        directory.mkdir(mode=0o700)
        # The marker comes after the lock: others remove only what is marked and not locked.
        with _locked(directory):
            try:
                mark(directory, purpose)
                yield directory
            finally:
                _discard(directory, target)
    finally:  # a signal came before the lock was held, and the directory is empty
        with suppress(OSError):
            directory.rmdir()


def mark(directory: Path, purpose: Purpose, *ours: str) -> None:
    """Write down what is done. ours: identities of what may be removed as `content`."""
    write_whole(directory / MARKER, "\n".join([purpose, *ours]) + "\n")


def identity(path: Path) -> str:
    """The inode of a path, its links not followed; it stays the same under other names."""
    status = path.lstat()
    return f"{status.st_dev}:{status.st_ino}"


def remove_leftovers(target: Path) -> None:
    """Remove what killed processes left beside the target, and tell it."""
    for directory in _named(target):
        with suppress(OSError), _locked(directory):  # not to be had: its process lives
            if is_marked(directory) and _discard(directory, target):
                _tell(f"removed {directory}: its process was killed")
            elif _is_unmarked_yet(directory):
                shutil.rmtree(directory, ignore_errors=True)


def is_being_written(target: Path) -> bool:
    """Whether a living process is going to put something at the target."""
    return any(
        _purpose(directory)[0] != "scratch" and _is_locked(directory)
        for directory in _marked(target)
    )


def is_marked(directory: Path) -> bool:
    """Whether the directory is one of ours, whatever its name."""
    marker = directory / MARKER
    return not directory.is_symlink() and marker.is_file() and not marker.is_symlink()


def _new_name(target: Path) -> Path:
    """The name is known before the directory is there, so that a signal in between loses nothing.

    Where it is taken after all, `mkdir` refuses.
    """
    return target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"


def _named(target: Path) -> list[Path]:
    return sorted(target.parent.glob(f".{glob.escape(target.name)}.partial-*"))


def _marked(target: Path) -> list[Path]:
    return [directory for directory in _named(target) if is_marked(directory)]


def _is_unmarked_yet(directory: Path) -> bool:
    """Whether its process was killed before it wrote the marker. There is nothing in it to lose."""
    made_here = _MADE.search(directory.name) and not directory.is_symlink()
    return bool(made_here) and {one.name for one in directory.iterdir()} <= {
        unfinished(directory / MARKER).name
    }


def _purpose(directory: Path) -> list[str]:
    with suppress(OSError, UnicodeDecodeError):
        return (directory / MARKER).read_text().split() or ["writing"]
    return ["scratch"]  # removed just now


def _is_locked(directory: Path) -> bool:
    try:
        with _locked(directory):
            return False
    except FileNotFoundError:  # removed just now
        return False
    except OSError:
        return True


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock. Raises OSError if another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _discard(directory: Path, target: Path) -> bool:
    """Remove a hidden directory, except for what isn't ours; return whether it is gone."""
    _put_back(directory / REPLACED, target)
    purpose, *ours = _purpose(directory)
    for path in (directory / CONTENT, directory / REPLACED):
        if purpose == "swapping" and os.path.lexists(path) and identity(path) not in ours:
            _tell(f"{path} came to {target} while that was being replaced: it is kept")
            return False
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def _put_back(replaced: Path, target: Path) -> None:
    """Return a former target to its place, if nothing has come there."""
    if os.path.lexists(replaced) and not os.path.lexists(target):
        rename_new(replaced, target)
        _tell(f"put back {target}: the process that was replacing it ended too early")


def _tell(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
