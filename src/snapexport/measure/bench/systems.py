"""The systems that a benchmark compares: a prompt in, then one token after another.

A system keeps no time. Its memory is measured in a process of its own, so that nothing else is
counted.
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.errors import UserError
from snapexport.measure.bench.costs import Costs
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.request import SamplingParams
from snapexport.runtime.requests.sampling import generator, sample

_GREEDY = SamplingParams()


@dataclass(frozen=True)
class SystemSpec:
    """A system that is not loaded yet.

    load: makes it; picklable, since memory is measured in a process of its own. batch, longest
    prompt and positions are its limits. cache_bytes: of all its caches.
    """

    name: str
    load: Callable[[], "ExecutorSystem"]
    batch: int
    longest_prompt: int
    positions: int
    costs: Costs
    cache_bytes: int

    @classmethod
    def of(cls, build: Build, *, baseline: bool, **running: Any) -> "SystemSpec":
        """A build's own graphs, or its baseline. running: as `load`'s. Raises UserError."""
        manifest, compresses = build.manifest, build.manifest.geometry.compresses
        if baseline and not compresses:
            raise UserError(f"{build.directory} is a full cache already", "leave out --baseline")
        full_cache = baseline or not compresses
        limits, cache = Limits.of(manifest, full_cache=full_cache), cache_bytes(manifest)
        return cls(
            "full" if full_cache else manifest.geometry.policy,
            partial(load, build.directory, baseline=baseline, **running),
            limits.batch,
            limits.longest_prompt,
            limits.positions,
            Costs.of(build, full_cache=full_cache),
            cache.prefill + (cache.full if full_cache else cache.decode),
        )


class ExecutorSystem:
    """An executor driven without a scheduler's queue: first prompts, then decode steps.

    Chunks and greedy sampling are the runtime's own. The cost of its queue, its text and its stop
    strings is not in here: `load.py` measures whole requests.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._inputs = np.zeros((3, executor.limits.batch), np.int64)
        self._rng = generator(_GREEDY)

    def prefill(self, slot: int, prompt: Sequence[int]) -> int:
        """From a prompt to its first token, from which the slot will go on."""
        token = sample(self.executor.prefill_prompt(slot, prompt), _GREEDY, self._rng)
        self._inputs[:, slot] = token, len(prompt), len(prompt)
        return token

    def fill_slot(self) -> None:
        """The compress step of the last prompt, unless it was run."""
        self.executor.fill_slot()

    def decode(self, active: int) -> list[int]:
        """One more token for each of the slots below `active`; the others may be lost."""
        predictions = self.executor.decode(*self._inputs[:, :active])
        for slot in range(active):
            self._inputs[0, slot] = sample(predictions[slot], _GREEDY, self._rng)
        self._inputs[1, :active] += 1
        tokens: list[int] = self._inputs[0, :active].tolist()
        return tokens

    def compress(self, prompt_length: int) -> None:
        """The compress step of the prompt that was prefilled last, once more, into slot 0."""
        self.executor.compress(0, prompt_length)


def load(build: Path, **running: Any) -> ExecutorSystem:
    """On the CPU, as a user's own run would be. running: `open_executor`'s. Raises UserError."""
    return ExecutorSystem(open_executor(Build.open(build), **{"backend": "onnxruntime"} | running))


T = TypeVar("T")
S = TypeVar("S")


def measure_memory(what: str, load: Callable[[], S], use: Callable[[S], object]) -> dict[str, int]:
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
            "with -9 the system ended it for lack of memory: use smaller --contexts",
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
