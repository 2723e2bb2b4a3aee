"""Handles a server's SIGINT and SIGTERM: the first starts the drain, the second cuts it short."""

import asyncio
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Catches both signals inside the block.

    Before `listen` a signal exits at once, through the `finally` blocks. After it, a signal only
    sets an event, so that it cannot interrupt the clean-up.
    """

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.hurried = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def listen(self) -> None:
        """Make signals set the events `received` and then `hurried` of the running loop."""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._loop is None:
            sys.exit(128 + number)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        (self.hurried if self.received.is_set() else self.received).set()
