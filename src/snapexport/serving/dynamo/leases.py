"""Keeps the batch slots of handed-over prompts until they were fetched, or nobody came.

A decode worker says that a row was fetched, or that it still wants it. A worker that was killed
says nothing: its leases end by time. Each lease has a stamp, 8 bytes in memory that a decode worker
reads after the row. The stamp is erased before the batch slot is used again, so that a reader who
comes too late can tell. Knows no NIXL and no clock.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
        for lease in [lease for lease, one in self._leases.items() if one.until <= now]:
            self.expired += 1
            self.end(lease)
