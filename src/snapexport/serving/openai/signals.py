"""Handles a server's SIGINT and SIGTERM: the first starts the drain, the second cuts it short.

After the second, the process ends within some seconds, whatever still runs in it.
"""

import asyncio
import os
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HURRY_SECONDS = 3.0
"""Seconds from the second signal to the end of the process, for its clean-up."""


class Signals:
    """Events of the event loop in which `listen` is called."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.hurried = asyncio.Event()

    def listen(self) -> None:
        """Let signals set `received` and then `hurried`, until the loop closes."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._take, number)

    def _take(self, number: int) -> None:
        if self.received.is_set() and not self.hurried.is_set():
            self.hurried.set()
            self._end_soon(128 + number)
        self.received.set()

    def _end_soon(self, status: int) -> None:
        """End the process after a while, even if a thread of it never ends."""
        end = threading.Timer(HURRY_SECONDS, os._exit, [status])
        end.daemon = True
        end.start()
