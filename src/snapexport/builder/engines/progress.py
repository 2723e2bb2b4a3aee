"""Lets Ctrl-C end work in C++."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def cancellable(work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Run `work` in a thread; on an exception in this one, call `cancel` and wait for its end.

    Python handles signals only in the main thread, and not while that is inside C++. This does not
    use an executor: a signal inside `submit` would lose track of started work.
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
