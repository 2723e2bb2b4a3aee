"""Keeps what tests make at length outside of the clone, where every clone, run and worker finds it.

An entry is one file, named by the hash of all that made it. It begins with the hash of its own
content: what was cut short or damaged is made anew. A second process that wants an entry which
another is making waits for it. The folder is `snapexport-tests` in $XDG_CACHE_HOME (by default
~/.cache). What was used longest ago goes when all is more than `LIMIT`.
SNAPEXPORT_TRACE_CACHE=off makes everything anew.
"""

import fcntl
import hashlib
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

LIMIT = 4 * 2**30
"""Bytes of all entries together."""
STALE = 24 * 60 * 60
"""Seconds after which a lock or a partial file that is left belongs to nobody."""
DIGEST = 32
"""Bytes of an entry's hash, with which it begins."""


def is_off() -> bool:
    return os.environ.get("SNAPEXPORT_TRACE_CACHE") == "off"


@cache
def usual_folder() -> Path:
    """The folder of this user."""
    cached = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cached) / "snapexport-tests"


class Store:
    """Entries in `folder`, by names such as `trace-0f3a...`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries, self._locks = folder / "entries", folder / "locks"
        for one in (self._entries, self._locks):
            one.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self) -> list[str]:
        """The names of all entries."""
        return sorted(path.name for path in self._entries.iterdir())

    def get(self, name: str) -> bytes | None:
        """The content of an entry; None if it is missing or damaged."""
        path = self._entries / name
        try:
            held = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        digest, content = held[:DIGEST], held[DIGEST:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, name: str, content: bytes) -> None:
        partial = self._entries / f"{name}.{os.getpid()}.partial"
        partial.write_bytes(hashlib.sha256(content).digest() + content)
        partial.replace(self._entries / name)

    def content(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The content of an entry, which `make` gives if it is not there. One process makes it."""
        found = self.get(name)
        if found is None:
            with self._lock(name):
                found = self.get(name)
                if found is None:
                    found = make()
                    self.put(name, found)
        return found

    def directory(self, name: str, make: Callable[[], object], out: Path) -> bool:
        """Fill `out` with what `make` once wrote there; whether it was made now."""
        made = []

        def packed() -> bytes:
            make()
            made.append(out)
            return pack(out)

        content = self.content(name, packed)
        if not made:
            unpack(content, out)
        return bool(made)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        with (self._locks / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def trim(self, limit: int = LIMIT) -> None:
        """Remove what was used longest ago until `limit` bytes are left, and what is nobody's."""
        for lock in self._locks.iterdir():
            _remove_if_stale(lock)
        entries = []
        for path in self._entries.iterdir():
            if path.suffix == ".partial":
                _remove_if_stale(path)
            elif known := _stat(path):
                entries.append((known.st_mtime, known.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= limit:
                break
            path.unlink(missing_ok=True)
            total -= size


def pack(folder: Path) -> bytes:
    """A folder's files as one."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(folder, arcname=".")
    return content.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="tar")


def _remove_if_stale(path: Path) -> None:
    known = _stat(path)
    if known and known.st_mtime < time.time() - STALE:
        path.unlink(missing_ok=True)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # another process removed it
        return None
