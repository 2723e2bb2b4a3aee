"""Ends the program quietly on SIGINT and SIGTERM. Imports nothing heavy: it runs first."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from types import FrameType
from typing import NoReturn


class EndedBySignal(SystemExit):
    """A signal ends the program, with 128 + the signal's number as its exit status."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(self.status)


def end_on_signals() -> None:
    """Leave through the `finally` blocks, which remove what is half-written."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    sys.unraisablehook = _leave_later


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise EndedBySignal(number)


def _leave_later(lost: "sys.UnraisableHookArgs") -> None:
    """Send a signal again whose exception Python dropped, as it does while it frees objects."""
    if isinstance(lost.exc_value, EndedBySignal):
        Timer(0.01, os.kill, (os.getpid(), lost.exc_value.status - 128)).start()
    else:
        sys.__unraisablehook__(lost)


class Interrupts:
    """SIGINT as a note instead of an end, for work that may only stop at certain places."""

    def __init__(self) -> None:
        self.came = False

    @contextmanager
    def as_notes(self) -> Iterator[None]:
        """During the block SIGINT sets `came`."""
        self.came = False
        former = signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, former)

    @contextmanager
    def as_errors(self) -> Iterator[None]:
        """During the block SIGINT raises KeyboardInterrupt, as one who waits for input needs it."""
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, former)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.came = True
