"""Handles a server's SIGINT and SIGTERM: the first starts the drain, the second cuts it short.

After the second, the process ends within some seconds, whatever still runs in it.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HURRY_SECONDS = 3.0
"""Seconds from the second signal to the end of the process, for its clean-up."""


class Signals:
    """Catches both signals inside the block.

    Before `listen` a signal exits at once, through the `finally` blocks. After it, a signal only
    sets an event, so that it cannot interrupt the clean-up.
    """

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.hurried = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._end: threading.Timer | None = None
        self._before: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def listen(self) -> None:
        """Make signals set the events `received` and then `hurried` of the running loop."""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        if self._end:
            self._end.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._loop is None:
            sys.exit(128 + number)
        if not self._loop.is_closed():
            self._count += 1
            if self._count == 2:
                self._end_soon(128 + number)
            self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        (self.hurried if self.received.is_set() else self.received).set()

    def _end_soon(self, status: int) -> None:
        """End the process after a while, even if the loop or a thread of it stands still."""
        self._end = threading.Timer(HURRY_SECONDS, os._exit, [status])
        self._end.daemon = True
        self._end.start()
