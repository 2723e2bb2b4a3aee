"""SIGINT and SIGTERM of a server: the first one starts the drain, the second one cuts it short."""

import asyncio
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Catches both signals while the block lasts.

    Before `listen` a signal exits at once, through the `finally` blocks. After it, a signal sets an
    event, and never interrupts the tidying up.
    """

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.hurried = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def listen(self) -> None:
        """From now on, signals set `received` and then `hurried` in the running loop."""
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
            self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        (self.hurried if self.received.is_set() else self.received).set()
