"""Measures memory in a process of its own, so that nothing else is counted."""

import multiprocessing
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from snapexport.errors import UserError

T = TypeVar("T")
S = TypeVar("S")


def measure(what: str, load: Callable[[], S], use: Callable[[S], object]) -> dict[str, int]:
    """Load a system in a fresh interpreter, and use it; both are picklable. Raises UserError.

    Returns bytes. empty: of the interpreter and its libraries, before loading. peak: the largest
    resident memory, with mapped weight files. anonymous: the process' own pages at the end.
    """
    return run_apart(f"measuring the memory of {what}", partial(_load_and_use, load, use))


def run_apart(what: str, action: Callable[[], T]) -> T:
    """Run a picklable action in a fresh interpreter. Returns its result. Raises UserError."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_send_result, args=(theirs, action), daemon=True)
    # The child ignores Ctrl-C from its first moment: it is for us, and we end the child.
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child.start()
    finally:
        signal.signal(signal.SIGINT, former)
    theirs.close()
    try:
        error, found = ours.recv()
    except EOFError:
        child.join()
        raise UserError(
            f"{what} ended with status {child.exitcode}",
            "-9 is the system's: it needs more memory than there is, so use smaller --contexts",
        ) from None
    finally:
        child.kill()
        child.join()
    if error is not None:
        raise UserError(*error)
    value: T = found
    return value


def _send_result(pipe: Connection, action: Callable[[], object]) -> None:
    """Send (a UserError's message and hint, or None; the action's result)."""
    try:
        pipe.send((None, action()))
    except UserError as error:
        pipe.send(((error.message, error.hint), None))


def _load_and_use(load: Callable[[], S], use: Callable[[S], object]) -> dict[str, int]:
    empty = _status()
    system = load()
    loaded = _status()
    use(system)
    end = _status()
    return {
        "empty": empty["VmRSS"],
        "loaded": loaded["VmRSS"],
        "peak": end["VmHWM"],
        "anonymous_loaded": loaded["RssAnon"],
        "anonymous": end["RssAnon"],
    }


def _status() -> dict[str, int]:
    """Bytes of this process by the kernel's names; proc(5), /proc/pid/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    rows = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in rows}
