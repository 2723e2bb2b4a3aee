"""Runs each case in a forked child with limits on memory and time.

The mother imports the libraries and starts no threads, so that a fork is cheap and sound.
"""

import faulthandler
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from snapexport.errors import UserError
from tests.fuzz.outcomes import DIED, HANG, MEMORY, REFUSED, TRACEBACK, WRONG, Result

BYTES = 8 << 30
CPU_SECONDS = 30
"""Processor time: other work on the machine must not make a case late."""
SECONDS = 120.0
"""Time by the clock, for a case that waits."""


class WronglyAcceptedError(Exception):
    """Raised by a kind: a mutated input was accepted that had to be refused."""


class Kind(Protocol):
    """A kind of input."""

    name: str

    def mutate(self, rng: random.Random, directory: Path) -> str:
        """Write a mutated input into the directory; return what was done."""

    def judge(self, directory: Path) -> tuple[str, str]:
        """Read it as a user would: an outcome and a detail.

        Raises UserError, or WronglyAcceptedError.
        """


@dataclass
class _Child:
    pid: int
    index: int
    pipe: int
    began: float
    told: bytes = b""


def run(
    kind: Kind, seed: int, indices: Iterable[int], work: Path, workers: int = 2
) -> Iterator[Result]:
    """Yield each case's result, as they end."""
    waiting, live = iter(indices), dict[int, _Child]()
    while True:
        while len(live) < workers and (index := next(waiting, None)) is not None:
            child = _start(kind, seed, index, work)
            live[child.pipe] = child
        if not live:
            return
        ready, _, _ = select.select(list(live), [], [], 0.2)
        for pipe in ready:
            if part := os.read(pipe, 1 << 16):
                live[pipe].told += part
            else:
                yield _ended(live.pop(pipe))
        for child in [one for one in live.values() if time.monotonic() - one.began > SECONDS]:
            yield _ended(live.pop(child.pipe), late=True)


def _start(kind: Kind, seed: int, index: int, work: Path) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _case(kind, seed, index, work, writing)
    os.close(writing)
    return _Child(pid, index, reading, time.monotonic())


def _ended(child: _Child, late: bool = False) -> Result:
    if late:
        os.kill(child.pid, signal.SIGKILL)
    _, status, usage = os.wait4(child.pid, 0)
    os.close(child.pipe)
    seconds = usage.ru_utime + usage.ru_stime
    lines = [json.loads(line) for line in child.told.splitlines()]
    mutation = lines[0] if lines else "(before the mutation)"
    if late:
        outcome, detail = HANG, f"more than {SECONDS:.0f} s by the clock"
    elif os.waitstatus_to_exitcode(status) == -signal.SIGXCPU:
        outcome, detail = HANG, f"more than {CPU_SECONDS} s of processor time"
    elif len(lines) == 2:
        outcome, detail = lines[1]
    else:
        outcome, detail = DIED, f"status {os.waitstatus_to_exitcode(status)}"
    return Result(child.index, outcome, mutation, detail, seconds, usage.ru_maxrss >> 10)


def _case(kind: Kind, seed: int, index: int, work: Path, writing: int) -> None:
    """The child's whole life: it never returns."""
    directory = Path(tempfile.mkdtemp(prefix=_prefix(os.getppid()), dir=work))
    try:
        faulthandler.disable()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        mutation = kind.mutate(random.Random(f"{kind.name}/{seed}/{index}"), directory)
        os.write(writing, json.dumps(mutation[:2000]).encode() + b"\n")
        os.write(writing, json.dumps(_judged(kind, directory)).encode() + b"\n")
    except BaseException:
        os.write(writing, json.dumps([DIED, traceback.format_exc()[-2000:]]).encode() + b"\n")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)


def _judged(kind: Kind, directory: Path) -> tuple[str, str]:
    try:
        outcome, detail = kind.judge(directory)
    except UserError as error:
        outcome, detail = REFUSED, str(error)
    except WronglyAcceptedError as error:
        outcome, detail = WRONG, str(error)
    except MemoryError as error:
        outcome, detail = MEMORY, _place(error)
    except BaseException as error:  # of Rust's panics, too
        outcome, detail = TRACEBACK, _place(error)
    return outcome, detail.replace(str(directory), "CASE")[:2000]


def _place(error: BaseException) -> str:
    """The exception, and the innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame
        for frame in frames
        if "/tests/" not in frame.filename and ".venv" not in frame.filename
    ]
    inner = ours[-1] if ours else frames[-1]
    where = f"{Path(inner.filename).name}:{inner.name}"
    return f"{type(error).__name__} in {where}: {str(error)[:300]}"


def _prefix(mother: int) -> str:
    """Of directories' names: several runs may share their material."""
    return f"case-{mother}-"


def remove_leftovers(work: Path) -> None:
    """The directories of killed children."""
    for left in work.glob(f"{_prefix(os.getpid())}*"):
        shutil.rmtree(left, ignore_errors=True)
    sys.stdout.flush()
