"""Starts the program: from here on an interrupt ends it quietly, even while modules load."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> int:
    """Run `snapexport`; the exit status."""
    end_on_signals()
    from snapexport.cli import app

    return app.main()


def end_on_signals() -> None:
    """Leave through the `finally` blocks, so that nothing half-written stays."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
