"""Times what a build's graphs take on this machine, to estimate longer work before it starts."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from snapexport.runtime.engine.executor import Executor

_STEPS = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds: by the clock, on this machine. nbytes: of weights and caches, in memory at once."""

    seconds: float
    nbytes: int


def chunk_seconds(executor: Executor, prompt_length: int) -> float:
    """Seconds of one chunk amid a prompt of that length: they grow with the chunks before it.

    A prompt of one chunk, or of a single-shot build, is run whole.
    """
    cuts = executor.limits.cuts(prompt_length)
    start, end = cuts[(len(cuts) - 1) // 2]
    prompt = [prompt_length % 97] * prompt_length
    return seconds(lambda: executor.prefill(0, prompt, start, end))


def step_seconds(executor: Executor, active: int) -> float:
    """Seconds of a decode step of the first `active` batch slots, whose contents are lost."""
    ones = np.ones(active, np.int64)

    def steps() -> None:
        for position in range(_STEPS):
            executor.decode(ones, ones + position, ones)

    return seconds(steps) / _STEPS


def seconds(action: Callable[[], object]) -> float:
    """Seconds of an action, once."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
