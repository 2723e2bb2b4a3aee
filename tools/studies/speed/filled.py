"""Executors after long prompts, without prefilling them: on the CPU caches hold random numbers.

Prefilling 131,072 tokens takes an hour on 2 cores, and a step's time does not depend on the numbers
it reads. The memory must have been written, since unwritten pages all map one page of zeros. A GPU
prefills one prompt, and copies it to all batch slots.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.measure.bench.costs import Costs
from snapexport.measure.bench.systems import ExecutorSystem
from snapexport.measure.bench.turns import Case, Row, singles, timer
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.ort.backend import OnnxRuntimeBackend
from tools.studies.speed.device import Device
from tools.studies.speed.record import Results

_BLOCK = 1 << 20
NOTE = (
    "caches hold random numbers, standard normal, a block of 1,048,576 repeated, in place of a "
    "prompt's keys and values; every step is that of the same position"
)


@dataclass(frozen=True)
class Step:
    """A row to measure: a decode step of all batch slots that attends to `context` positions."""

    build: Build
    context: int
    labels: Row


def measure_steps(
    device: Device,
    results: Results,
    steps: Sequence[Step],
    times: int,
    rounds: int,
    then: Callable[[list[Case]], None] = lambda cases: None,
) -> None:
    """Time the steps that have no row yet, in turn. Their builds are open at the same time."""
    todo = [s for s in steps if not results.has("decode", {"context": s.context, **s.labels})]
    if not todo:
        return
    longest = max(step.context for step in steps)
    with ExitStack() as stack:
        systems = {
            build.directory: stack.enter_context(_opened(device, build, longest, results))
            for build in {step.build.directory: step.build for step in todo}.values()
        }
        cases = [systems[s.build.directory].case(s.context, times, **s.labels) for s in todo]
        results.measure("decode", singles(cases), rounds, device.probes())
        then(cases)


@contextmanager
def _opened(
    device: Device, build: Build, longest: int, results: Results
) -> Iterator["FilledSystem"]:
    """A build on a device, behind prompts of up to `longest` tokens; closed at the end.

    On a GPU the operators that the CPU runs are kept in the results.
    """
    with device.opened(build) as executor:
        if device.name == "cpu":
            results.note(NOTE)
            yield FilledSystem(build, executor)
            return
        assert isinstance(executor.backend, OnnxRuntimeBackend)
        operators = executor.backend.operators().items()
        graphs = {name: found.get("CPUExecutionProvider", {}) for name, found in operators}
        labels = {"build": build.directory.name}
        if not results.has("operators", labels):
            row = {**labels, "captured": executor.captured, "on_cpu": graphs}
            results.add("operators", row)
        yield FilledSystem(build, executor, longest - 1)


class FilledSystem:
    """A system without prefill. prompt: the length of the prompt that a GPU prefills."""

    def __init__(self, build: Build, executor: Executor, prompt: int | None = None) -> None:
        assert isinstance(executor, Executor), "one process measures"
        self.build, self.executor = build, executor
        if prompt is None:
            self.refill()
            return
        limits = executor.limits
        tokens = np.random.default_rng(0).integers(0, limits.vocab_size, prompt).tolist()
        ExecutorSystem(executor).prefill(0, tokens)
        for slot in range(1, limits.batch):
            executor.move(0, slot)

    def refill(self) -> None:
        """Random numbers in every slot, whatever was prefilled since."""
        fill(self.executor.decode_buffers)

    def step(self, context: int, active: int) -> None:
        """The token at position context - 1, behind a prompt of all before it."""
        position = np.full(active, context - 1)
        self.executor.decode(np.ones_like(position), position, position)

    def case(self, context: int, times: int, **labels: Any) -> Case:
        """A decode step of all slots that attends to `context` positions or to what is kept."""
        batch = self.build.manifest.batch
        costs = Costs.of(self.build, full_cache=not self.build.manifest.geometry.compresses)
        work = costs.decode(context - 1, batch)
        step = timer(partial(self.step, context, batch))
        labels = {"context": context, "batch": batch} | labels
        return Case("decode", labels, step, times, work=work, tokens=batch)


def fill(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Fill every cache input with random numbers."""
    normal = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)
    for name, cache in arrays.items():
        if names.is_past(name):
            block = 40 * normal if cache.dtype == np.int8 else normal
            flat = cache.reshape(-1)
            for start in range(0, flat.size, _BLOCK):
                part = flat[start : start + _BLOCK]
                part[:] = block[: part.size]


def fill_prompt(executor: Executor) -> None:
    """The full-length cache of the prompt in prefill; a GPU's holds zeros, which are there."""
    assert executor.prompt_cache is not None, "a single shot has none"
    buffers = executor.prompt_cache.buffers.items()
    fill({name: one.array for name, one in buffers if one.array is not None})
