"""SIGINT and SIGTERM while a server runs: the first asks to end, the second not to wait for it."""

import asyncio
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Ending:
    """Catches both signals while the block lasts.

    Until `listen`, there is nothing to end in order: a signal leaves at once, through the `finally`
    blocks. After it, no signal interrupts what the blocks around the event loop tidy up.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def listen(self) -> None:
        """From now on, signals set the events of the running loop."""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._loop is None:
            sys.exit(128 + number)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()
