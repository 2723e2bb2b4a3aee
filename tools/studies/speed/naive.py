"""Decode steps for a process of its own: of a build, and of its naive graph. Loads no onnx."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.measure.bench.probes import Arrays, Bound, open_session, zeros
from snapexport.measure.bench.systems import load
from tools.studies.speed.filled import FilledSystem, fill

Integers = NDArray[np.int64]


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
        fill(self.inputs)

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


def ring_step(directory: Path, threads: int) -> Callable[[], None]:
    """A decode step of the build at its longest context."""
    build = Build.open(directory)
    filled = FilledSystem(build, load(directory, threads=threads).executor)
    return partial(filled.step, build.manifest.geometry.L_max, build.manifest.batch)


def naive_step(directory: Path, graph: Path, threads: int) -> Callable[[], None]:
    """The same of its naive graph."""
    build = Build.open(directory)
    return partial(NaiveDecode(build, graph, threads).step, build.manifest.geometry.L_max)


def repeat(times: int, step: Callable[[], None]) -> None:
    """So many steps."""
    for _ in range(times):
        step()
