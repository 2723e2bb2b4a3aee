"""Measures the memory of a system, in its own process so that nothing else is counted."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import numpy as np

from snapexport.bench.systems import System, SystemSpec
from snapexport.contract.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. empty: the interpreter and its libraries, before loading. peak: the largest resident
    memory, with mapped weight files, during the longest prompts and some steps. anonymous: the
    process' own pages after them.
    """

    empty: int
    loaded: int
    peak: int
    anonymous_loaded: int
    anonymous: int

    def report(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Filling:
    """An action: fill batch slots with random prompts, then decode some steps."""

    slots: int
    prompt: int
    decode_steps: int
    vocab_size: int


def measure(spec: SystemSpec, filling: Filling) -> Memory:
    """Load a system in a fresh interpreter, fill its batch slots, and decode."""
    return apart(f"measuring the memory of {spec.name}", partial(_used, spec.load, filling))


def apart(what: str, action: Callable[[], T]) -> T:
    """Run a picklable action in a fresh interpreter. Returns its result. Raises UserError."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_tell, args=(theirs, action), daemon=True)
    with _ctrl_c_ignored():  # by the child from its first moment: Ctrl-C is for us, and we end it
        child.start()
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


def _tell(pipe: Connection, action: Callable[[], object]) -> None:
    """Send (a UserError's message and hint, or None; the action's result)."""
    try:
        pipe.send((None, action()))
    except UserError as error:
        pipe.send(((error.message, error.hint), None))


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Children keep what is ignored when they are started."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def _used(load: Callable[[], System], filling: Filling) -> Memory:
    empty = status()
    system = load()
    loaded = status()
    shape = filling.slots, filling.prompt
    prompts = np.random.default_rng(0).integers(0, filling.vocab_size, shape)
    for slot, prompt in enumerate(prompts.tolist()):
        system.prefill(slot, prompt)
    for _ in range(filling.decode_steps):
        system.decode(filling.slots)
    end = status()
    return Memory(empty["VmRSS"], loaded["VmRSS"], end["VmHWM"], loaded["RssAnon"], end["RssAnon"])


def status() -> dict[str, int]:
    """Bytes of this process by the kernel's names; proc(5), /proc/pid/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    rows = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in rows}


def share() -> tuple[int, int]:
    """Bytes of this process' own pages, and its share (PSS) of mapped files.

    PSS counts a weight file that two sessions map once; RSS would count it twice.
    """
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kilobytes = {row[0].rstrip(":"): int(row[1]) for row in rows}
    return kilobytes["Pss_Anon"] * 1024, kilobytes["Pss_File"] * 1024
