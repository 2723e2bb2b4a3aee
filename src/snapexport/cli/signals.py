"""Ends the program quietly on SIGINT and SIGTERM. Imports nothing heavy: it runs first."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def end_on_signals() -> None:
    """Leave through the `finally` blocks, so that nothing half-written stays."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
