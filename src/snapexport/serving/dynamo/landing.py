"""Lends memory in which fetched rows land, until the runtime has copied them into a batch slot.

Nothing may land in a batch slot itself: decode steps write to idle ones too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.engine.backend import Buffer
from snapexport.serving.dynamo.message import Span


@dataclass(eq=False, slots=True)
class Landing:
    """Memory for one row, and for the stamp that is read after it."""

    row: tuple[Buffer, ...]
    stamp: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    @property
    def stamp_span(self) -> Span:
        """Where the stamp lies."""
        return Span(address=self.stamp.ctypes.data, nbytes=self.stamp.nbytes)


class LandingRows:
    """A fixed number of them. The longest waiting borrower is next."""

    def __init__(self, rows: list[Landing]) -> None:
        self._free: asyncio.Queue[Landing] = asyncio.Queue()
        for row in rows:
            self._free.put_nowait(row)

    @asynccontextmanager
    async def borrowed(
        self, every: float, meanwhile: Callable[[], Awaitable[None]]
    ) -> AsyncIterator["Borrowed"]:
        """Lend one. meanwhile: called every so many seconds of waiting."""
        while True:
            try:
                row = await asyncio.wait_for(self._free.get(), every)
                break
            except TimeoutError:
                await meanwhile()
        loan = Borrowed(row, self._free)
        try:
            yield loan
        finally:
            loan.give_back()


class Borrowed:
    """A landing row on loan."""

    def __init__(self, row: Landing, free: "asyncio.Queue[Landing]") -> None:
        self.row = row
        self._free: asyncio.Queue[Landing] | None = free

    def give_back(self) -> None:
        """Let the next borrower have it. A second call does nothing."""
        if self._free is not None:
            self._free.put_nowait(self.row)
            self._free = None

    def replace(self, row: Landing) -> None:
        """Never lend this one again: a transfer that can't be stopped may still write to it."""
        self.row = row
