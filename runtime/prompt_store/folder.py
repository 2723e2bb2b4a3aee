"""Holds files by key in a folder of one owner, within a number of bytes.

Several processes may share it: who changes it holds its lock, which ends with the process. A file
is written beside its name and renamed, and what a killed process left is removed. The file that was
used longest ago goes first; its time of modification says when that was. Files of other names
stay, and links are not followed. Knows nothing of what files hold.
"""

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from snapexport.errors import UserError
from snapexport.files.safetensors import SUFFIX
from snapexport.files.whole import PARTIAL, finish, locked, partial_path

_KEY = "[0-9a-f]{64}"
_NAME = re.compile(f"({_KEY}){re.escape(SUFFIX)}")
_UNFINISHED = re.compile(f"{_KEY}{re.escape(SUFFIX + PARTIAL)}")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PAUSE = 0.005


class NoRoomError(Exception):
    """A file does not fit beside those that were used later."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the folder. used: when it was used last, in nanoseconds."""

    key: str
    path: Path
    nbytes: int
    used: int


class KeyedFolder:
    """The files of a folder, which is made if it is missing.

    evicted: files that this object removed to make room. nbytes: of all files, when it last looked.
    """

    def __init__(
        self, folder: Path, most_bytes: int | None = None, wait_seconds: float = 2.0
    ) -> None:
        """most_bytes: None for any number. wait_seconds: for a process that holds the lock.

        Raises UserError.
        """
        self._most, self._wait_seconds = most_bytes, wait_seconds
        self.evicted = self.nbytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path = folder.resolve(strict=True)
            if not any(self.path.iterdir()):  # else others' files may be there
                self.path.chmod(0o700)
            state = self.path.stat()
        except OSError as error:
            raise _unusable(folder, str(error.strerror)) from None
        if state.st_uid != os.geteuid() or state.st_mode & _OTHERS_WRITE:
            raise _unusable(folder, "others may write there")
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise _unusable(folder, "it is not writable")
        with suppress(OSError, NoRoomError), self._hold_lock():
            self._make_room(0, time.time_ns())  # for those of a larger bound

    def has(self, key: str) -> bool:
        """Whether there is a file of that key."""
        return os.path.lexists(self._file(key))

    def read(self, key: str, nbytes: int) -> bytearray | None:
        """The bytes of a file; None if it has not as many. Raises OSError."""
        descriptor = os.open(
            self._file(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_size != nbytes:
                return None
            raw = bytearray(nbytes)
            view = memoryview(raw)
            while view and (count := file.readinto(view)):
                view = view[count:]
            return None if view else raw

    def touch(self, key: str, used: int) -> None:
        """Note when a file was used. Raises OSError."""
        os.utime(self._file(key), ns=(used, used), follow_symlinks=False)

    def write(self, key: str, blocks: Sequence[memoryview], used: int) -> None:
        """Write a file, and make room for it before. Raises OSError and NoRoomError."""
        path = self._file(key)
        with self._hold_lock():
            nbytes = sum(block.nbytes for block in blocks)
            self._make_room(nbytes, used)
            partial = partial_path(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(partial, flags, 0o600), "wb", buffering=0) as file:
                    for block in blocks:
                        _write_all(file.fileno(), block)
                    os.utime(file.fileno(), ns=(used, used))
                finish(path)
            finally:
                partial.unlink(missing_ok=True)
            self.nbytes += nbytes

    def remove(self, key: str) -> None:
        """Remove a file. Raises OSError."""
        self._file(key).unlink(missing_ok=True)

    def clear(self) -> tuple[int, int]:
        """Remove all files; how many, and their bytes. Raises OSError."""
        with self._hold_lock():
            entries = self._entries()
            for entry in entries:
                entry.path.unlink(missing_ok=True)
        self.nbytes = 0
        return len(entries), sum(entry.nbytes for entry in entries)

    def _file(self, key: str) -> Path:
        assert re.fullmatch(_KEY, key)
        return self.path / f"{key}{SUFFIX}"

    def _make_room(self, nbytes: int, used: int) -> None:
        """Remove files until one of `nbytes` fits, but none that was used at `used` or later."""
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        self.nbytes = sum(entry.nbytes for entry in entries)
        removable = sum(entry.nbytes for entry in entries if entry.used < used)
        most = self._most if self._most is not None else self.nbytes + nbytes
        if self.nbytes - removable + nbytes > most:
            raise NoRoomError
        for entry in entries:
            if self.nbytes + nbytes <= most:
                return
            entry.path.unlink(missing_ok=True)
            self.nbytes -= entry.nbytes
            self.evicted += 1

    def _entries(self) -> list[Entry]:
        """All files. Unfinished ones are removed: who holds the lock writes none now."""
        for path in self.path.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
        return list(entries_of(self.path))

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the lock. Raises BlockingIOError if another process keeps it."""
        end = time.monotonic() + self._wait_seconds
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(locked(self.path))
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise
                time.sleep(_PAUSE)
            yield


def entries_of(folder: Path) -> Iterator[Entry]:
    """The files of a folder that have keys. Raises OSError."""
    now = time.time_ns()
    with os.scandir(folder) as found:
        for one in found:
            if not (match := _NAME.fullmatch(one.name)):
                continue
            with suppress(FileNotFoundError):  # another process has removed it
                state = one.stat(follow_symlinks=False)
                if not stat.S_ISDIR(state.st_mode):
                    # A time to come, of a clock that was set back, would keep a file for ever.
                    used = state.st_mtime_ns if state.st_mtime_ns <= now else 0
                    yield Entry(match[1], Path(one.path), state.st_size, used)


def _write_all(descriptor: int, block: memoryview) -> None:
    while block:
        block = block[os.write(descriptor, block) :]


def _unusable(folder: Path, why: str) -> UserError:
    return UserError(
        f"{folder} cannot hold prompt caches: {why}",
        "name a folder of your own, which only you may write to (chmod 700)",
    )
