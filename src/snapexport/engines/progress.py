"""Tells how far the building of engines is, and lets Ctrl-C end work in C++."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Told what is going on."""

    def stage(self, text: str) -> None:
        """What begins, or how far it is. May be called by TensorRT's threads."""


class Silent:
    """Tells nobody."""

    def stage(self, text: str) -> None:
        pass


def cancellable(work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Do `work` in a thread; on any exception here, `cancel` it and wait for its end.

    Python handles signals in the main thread alone, and not while that is inside C++. No executor:
    a signal within its `submit` would lose the work that it has begun.
    """
    future: Future[T] = Future()
    try:
        Thread(target=_fulfil, args=(future, work)).start()
        return future.result()
    except BaseException:
        cancel()
        if not future.cancel():  # it has begun
            wait([future])
        raise


def _fulfil(future: "Future[T]", work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
