"""Ends the program quietly on SIGINT and SIGTERM. Imports nothing heavy: it runs first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
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


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise EndedBySignal(number)


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
