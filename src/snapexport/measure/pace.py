"""Times what a build's graphs take on this machine, to estimate longer work before it starts."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from snapexport.contract.pieces import pieces_of
from snapexport.runtime.engine.executor import Executor

_STEPS = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds: by the clock, on this machine. nbytes: of weights and caches, in memory at once."""

    seconds: float
    nbytes: int


def chunk_seconds(executor: Executor, prompt_length: int) -> float:
    """Seconds of a prompt's middle chunk: they grow with the chunks before it.

    A prompt of one chunk, or of a single-shot build, is run whole.
    """
    work = pieces_of(prompt_length, executor.limits.prefill)
    own = [piece for piece in work if not piece.only_votes]
    prompt = [prompt_length % 97] * prompt_length
    return seconds_of(lambda: executor.take(0, prompt, own[(len(own) - 1) // 2]))


def step_seconds(executor: Executor, active: int) -> float:
    """Seconds of a decode step of the first `active` batch slots, whose contents are lost."""
    ones = np.ones(active, np.int64)

    def steps() -> None:
        for position in range(_STEPS):
            executor.decode(ones, ones + position, ones)

    return seconds_of(steps) / _STEPS


def seconds_of(action: Callable[[], object]) -> float:
    """Run an action once, and return the seconds that it took."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
