"""Engines behind prompts that nobody prefilled: their caches hold random numbers.

Prefilling 131,072 tokens takes an hour on 2 cores, and what a step costs does not depend on the
numbers that it reads. It does depend on their being there: memory of zeros that was never written
is one page of the system, mapped everywhere.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.bench.costs import Costs
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.runtime.open_executor import open_executor

from .turns import Case, clocked

_BLOCK = 1 << 20
NOTE = (
    "caches hold random numbers, standard normal, a block of 1,048,576 repeated, in place of a "
    "prompt's keys and values; every step is that of the same position"
)


def fill(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Every cache input among a graph's arrays."""
    normal = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)
    for name, cache in arrays.items():
        if names.is_past(name):
            block = 40 * normal if cache.dtype == np.int8 else normal
            flat = cache.reshape(-1)
            for start in range(0, flat.size, _BLOCK):
                piece = flat[start : start + _BLOCK]
                piece[:] = block[: piece.size]


class FilledEngine:
    """A contender of `snapexport.bench` whose prefill costs nothing."""

    def __init__(self, build: Build, threads: int, prepack: bool = False) -> None:
        self.build = build
        self.engine = open_executor(build, threads=threads, prepack=prepack)
        self._context = 1
        self.refill()

    def refill(self) -> None:
        """Random numbers in every slot, whatever was prefilled since."""
        fill(self.engine.decode_buffers)

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        """Take a prompt for prefilled; all slots' are as long as the last one's."""
        self._context = len(prompt)

    def decode(self, active: int) -> None:
        """A step of the token behind the prompt."""
        self.step(self._context, active)

    def step(self, context: int, active: int) -> None:
        """The token at position context - 1, behind a prompt of all before it."""
        position = np.full(active, context - 1)
        self.engine.decode(np.ones_like(position), position, position)

    def case(self, context: int, times: int, **labels: Any) -> Case:
        """A decode step of all slots that attends to `context` positions or to what is kept."""
        batch = self.build.manifest.batch
        full_cache = not self.build.manifest.geometry.compresses
        costs = Costs.of(self.build, full_cache=full_cache)
        work = costs.decode(context - 1, context - 1, batch)
        labels = {"context": context, "batch": batch} | labels
        return Case(labels, clocked(partial(self.step, context, batch)), times, work=work)


def load(build: Path, threads: int) -> FilledEngine:
    """For a process of its own."""
    return FilledEngine(Build.open(build), threads)
