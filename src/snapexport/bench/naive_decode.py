"""Runs a decode graph whose output caches have other buffers than its input caches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.bench.filled import fill
from snapexport.bench.sessions import Arrays, Bound, open_session, zeros
from snapexport.contract import names
from snapexport.contract.build_directory import Build

Integers = NDArray[np.int64]


def load(build: Path, graph: Path, threads: int) -> "NaiveDecode":
    """For a process of its own."""
    return NaiveDecode(Build.open(build), graph, threads)


class NaiveDecode:
    """The naive graph of a build, with two sets of cache buffers that swap roles in each step.

    inputs: those of the first step.
    """

    def __init__(self, build: Build, graph: Path, threads: int) -> None:
        entry = build.manifest.graphs["decode"]
        self.inputs, self._outputs = zeros(entry.inputs), zeros(entry.outputs)
        read = {name: array for name, array in self.inputs.items() if names.is_past(name)}
        written = {name: np.zeros_like(array) for name, array in read.items()}
        session = open_session(graph, threads)
        # Outputs are the next inputs, so the second binding has the buffers swapped.
        self._bound = [
            Bound(session, self.inputs | read, self._outputs | _named(self._outputs, written)),
            Bound(session, self.inputs | written, self._outputs | _named(self._outputs, read)),
        ]
        self._context = 1
        fill(self.inputs)

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        """Take a prompt for prefilled; all slots' are as long as the last one's."""
        self._context = len(prompt)

    def decode(self, active: int) -> None:
        """A step of all slots."""
        self.step(self._context)

    def step(self, context: int) -> None:
        """The token at position context - 1, behind a prompt of all before it."""
        position = np.full(len(self.inputs[names.INPUT_IDS]), context - 1)
        self.run(np.ones_like(position), position, position)

    def run(
        self, input_ids: Integers, position_ids: Integers, prompt_length: Integers
    ) -> NDArray[Any]:
        """One token of every slot; logits [B,V]."""
        self.inputs[names.INPUT_IDS][:, 0] = input_ids
        self.inputs[names.POSITION_IDS][:, 0] = position_ids
        self.inputs[names.PROMPT_LENGTH][:] = prompt_length
        self._bound[0].run()
        self._bound.reverse()
        return self._outputs[names.LOGITS]


def _named(outputs: Arrays, caches: Arrays) -> Arrays:
    """{output name: cache}; a cache may be several outputs."""
    pasts = {name: names.past_of(name) for name in outputs}
    return {name: caches[past] for name, past in pasts.items() if past in caches}
