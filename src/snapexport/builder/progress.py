"""Reports the stages of a build while it runs, and lets Ctrl-C end work in C++."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Receives the progress of a build."""

    def stage(self, text: str) -> None:
        """Report that a new stage of the work begins."""

    def note(self, text: str) -> None:
        """Report something the build leaves out."""

    def written(self, nbytes: int) -> None:
        """Report that `nbytes` more bytes of weights were written."""


class Silent:
    """Shows nothing."""

    def stage(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def written(self, nbytes: int) -> None:
        pass


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
