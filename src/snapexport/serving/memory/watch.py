"""Watches the memory of the process, and refuses requests before it passes its bound.

The parts of the bound are limits of their own. This is the last resort for what they do not know,
such as log probabilities of long answers that nobody reads.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from snapexport.serving.memory import process

SECONDS = 1.0
LOG = logging.getLogger("uvicorn.error")


class Admission(Protocol):
    """Who takes requests: the worker."""

    holds: bool
    """Whether new requests are refused."""

    def end_latest(self) -> None:
        """End the request that came last, with a failure that its client may try again."""


@dataclass
class Watch:
    """bound: bytes. resident: reads the memory of the process."""

    bound: int
    admission: Admission
    resident: Callable[[], int] = process.resident_bytes
    trim: Callable[[], None] = process.trim
    peak: int = field(default=0, init=False)

    @property
    def margin(self) -> int:
        """Bytes below the bound at which nothing more is let in: what a second may bring."""
        return min(self.bound // 20, 512 << 20)

    def look(self) -> None:
        """Compare the memory with the bound, and act on it."""
        if self._now() < self.bound - self.margin:
            self.admission.holds = False
            return
        self.trim()
        found = self._now()
        self.admission.holds = found >= self.bound - self.margin
        if found >= self.bound - self.margin // 2:
            LOG.error("the memory is near its bound: the latest request is ended")
            self.admission.end_latest()

    def admits(self) -> bool:
        """Whether one more request may come. Asked for each: a second brings hundreds."""
        if self._now() >= self.bound - self.margin:
            self.admission.holds = True
        return not self.admission.holds

    async def run(self) -> NoReturn:
        """Look each second."""
        while True:
            self.look()
            await asyncio.sleep(SECONDS)

    def _now(self) -> int:
        found = self.resident()
        self.peak = max(self.peak, found)
        return found
