"""A signal ends work in a thread, at any moment."""

import os
import signal
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from snapexport.builder.progress import cancellable
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def default_sigint() -> Iterator[None]:
    """Python's own SIGINT handler, in place of one that tests of commands left behind."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def test_cancellable_returns_the_result_or_exception_of_its_work() -> None:
    cancelled = Event()
    assert cancellable(lambda: 3, cancelled.set) == 3
    assert not cancelled.is_set()
    with pytest.raises(ZeroDivisionError):
        cancellable(lambda: 1 // 0, cancelled.set)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_signal_ends_cancellable_work_while_it_is_awaited() -> None:
    stop, ended = Event(), Event()

    def work() -> None:
        interrupt()
        assert stop.wait(PATIENCE)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        cancellable(work, stop.set)
    assert ended.is_set()


@pytest.mark.parametrize("begun", [False, True])
def test_signal_ends_cancellable_work_while_it_starts(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    stop, ended, start = Event(), Event(), Thread.start

    def interrupted(thread: Thread) -> None:
        if begun:
            start(thread)
        interrupt()

    def work() -> None:
        assert stop.wait(PATIENCE)
        ended.set()

    monkeypatch.setattr(Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cancellable(work, stop.set)
    assert stop.is_set()
    assert ended.is_set() or not begun
