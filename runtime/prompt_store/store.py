"""Writes kept chunks in the background, and finds them again.

Nobody waits for the disk: chunks that are not written yet may take `most_pending` bytes, and
further ones are dropped. A problem with the folder or a file is one warning. Knows no
prompt cache and no request.
"""

import os
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from snapexport.runtime.prompt_store import chunk_file
from snapexport.runtime.prompt_store.chunk_file import Chunk, Parts, Specs
from snapexport.runtime.prompt_store.folder import KeyedFolder, NoRoomError

MOST_PENDING = 512 << 20
_NICE = 10
"""Of the writing thread: what computes goes before it."""


class ChunkStore:
    """The chunks of one build in a folder, which others may share. One thread calls it.

    counts: chunks that were `dropped`, since the disk was too slow or the folder too small.
    """

    def __init__(self, folder: KeyedFolder, build: str, most_pending: int = MOST_PENDING) -> None:
        """build: digest of what computes the chunks, in hex. most_pending: bytes."""
        self.folder, self.build, self._most_pending = folder, build, most_pending
        self.counts: Counter[str] = Counter()
        self._pending: dict[str, Chunk] = {}
        self._pending_bytes = 0
        self._changing = threading.Lock()
        self._warned: set[str] = set()
        self._writer = ThreadPoolExecutor(1, "prompt cache", initializer=_yield_to_others)

    def has(self, key: str) -> bool:
        """Whether the chunk is written, or will be."""
        return key in self._pending or self.folder.has(key)

    def keep(self, chunk: Chunk, used: int) -> None:
        """Write a chunk later. used: the time of its use, in nanoseconds."""
        with self._changing:
            if self._pending_bytes + chunk.nbytes > self._most_pending:
                self.counts["dropped"] += 1
                return
            self._pending[chunk.key] = chunk
            self._pending_bytes += chunk.nbytes
        self._writer.submit(self._write, chunk, used)

    def read(self, wanted: Chunk, specs: Specs) -> Parts | None:
        """A chunk's parts, of these types and shapes; None if it is not there, or damaged.

        wanted: without parts. A damaged file is removed.
        """
        if pending := self._pending.get(wanted.key):
            return pending.parts
        try:
            raw = self.folder.read(wanted.key, chunk_file.size_of(wanted, specs))
            if raw is not None and (parts := chunk_file.read(raw, wanted, specs)) is not None:
                return parts
            self._warn("damaged", f"{wanted.key} is damaged or of another program: it is removed")
            self.folder.remove(wanted.key)
        except FileNotFoundError:
            pass  # another process made room
        except (OSError, MemoryError) as error:
            self._warn("read", f"{wanted.key} cannot be read: {error}")
        return None

    def use(self, keys: Sequence[str], used: int) -> None:
        """Note later that chunks were used, in their order: the last go first."""
        self._writer.submit(self._touch, keys, used)

    def close(self) -> None:
        """Wait until all chunks are written."""
        self._writer.shutdown()

    def _touch(self, keys: Sequence[str], used: int) -> None:
        for index, key in enumerate(keys):
            with suppress(OSError):  # it was removed meanwhile, or is not written yet
                self.folder.touch(key, used_at(used, index))

    def _write(self, chunk: Chunk, used: int) -> None:
        try:
            if not self.folder.has(chunk.key):
                self.folder.write(chunk.key, chunk_file.blocks_of(chunk), used)
        except NoRoomError:
            self.counts["dropped"] += 1
            self._warn(
                "room", "no room beside chunks that were used later: a prompt's end is not kept"
            )
        except BlockingIOError:
            self.counts["dropped"] += 1
            self._warn("lock", "another process keeps its lock: chunks are not kept")
        except OSError as error:
            self.counts["dropped"] += 1
            self._warn("write", f"chunks are not kept: {error}")
        finally:
            with self._changing:
                del self._pending[chunk.key]
                self._pending_bytes -= chunk.nbytes

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(
                f"the prompt cache {self.folder.path}: {what}", RuntimeWarning, stacklevel=1
            )


def used_at(used: int, index: int) -> int:
    """The time of use of a prompt's chunk, in nanoseconds: its first chunks go last.

    File systems may keep microseconds only.
    """
    return used - index * 1000


def _yield_to_others() -> None:
    """Lower the priority of this thread, where threads have one of their own."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
