"""The systems that a benchmark compares: a prompt in, then one token after another.

A system keeps no time. Other libraries are in `peers/`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
