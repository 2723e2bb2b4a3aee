"""Who is inside, and whether others may still come in."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from snapexport.serving.openai.errors import leaving


class Gate:
    """Counts the requests in work, so that a server can end without cutting them off."""

    def __init__(self) -> None:
        self.inside = 0
        self.closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a place while the block lasts. Raises ApiError once the gate is closed."""
        if self.closed:
            raise leaving()
        self.inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._empty.set()

    def close(self) -> None:
        """Let nobody in any more."""
        self.closed = True

    async def empties(self, seconds: float) -> bool:
        """Whether all have left within so many seconds."""
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True
