"""Keeps the batch slots of handed-over prompts until they were fetched, or nobody came.

A decode worker notes that it still wants a row (`hold`), or that it has fetched it (`end`). A
worker that was killed notes nothing: its leases end by time. Each lease has a stamp, 8 bytes in
memory that a decode worker reads after the row. The stamp is erased before the batch slot is used
again, and so shows a reader that it came too late. Knows no NIXL and no clock.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HOLD, END = "hold", "end"
_NOTE = re.compile(rb"(hold|end) (\d{1,19})")


def note(verb: str, lease: int) -> bytes:
    """The bytes of a note to a prefill worker."""
    return f"{verb} {lease}".encode()


def parse(text: bytes) -> tuple[str, int]:
    """The note's verb and lease; an empty verb for anything else."""
    found = _NOTE.fullmatch(text)
    return (found[1].decode(), int(found[2])) if found else ("", 0)


@dataclass(slots=True)
class _Lease:
    request_id: int
    stamp: int
    until: float


class Leases:
    """Up to `count` leases at once, as many as there are batch slots."""

    def __init__(self, count: int, seconds: float, release: Callable[[int], None]) -> None:
        """release: frees the batch slot of a request."""
        self.stamps: NDArray[np.int64] = np.zeros(count, np.int64)
        self.expired = 0
        self._seconds, self._release = seconds, release
        self._free = set(range(count))
        self._leases: dict[int, _Lease] = {}
        self._of_request: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, request_id: int, now: float) -> None:
        """Begin a request's lease."""
        stamp = self._free.pop()
        lease = secrets.randbelow((1 << 63) - 1) + 1  # unguessable: it names the row to others
        self._leases[lease] = _Lease(request_id, stamp, now + self._seconds)
        self._of_request[request_id] = lease
        self.stamps[stamp] = lease

    def of(self, request_id: int) -> tuple[int, int] | None:
        """A request's lease and the index of its stamp; None if it has ended."""
        lease = self._of_request.get(request_id)
        return None if lease is None else (lease, self._leases[lease].stamp)

    def extend(self, lease: int, now: float) -> None:
        """Somebody still wants the row."""
        if found := self._leases.get(lease):
            found.until = now + self._seconds

    def end(self, lease: int) -> None:
        """Free the batch slot. Does nothing for a lease that has ended."""
        if found := self._leases.pop(lease, None):
            self.stamps[found.stamp] = 0
            self._free.add(found.stamp)
            del self._of_request[found.request_id]
            self._release(found.request_id)

    def expire(self, now: float) -> None:
        """End all leases that are over."""
        for lease in [name for name, lease in self._leases.items() if lease.until <= now]:
            self.expired += 1
            self.end(lease)
