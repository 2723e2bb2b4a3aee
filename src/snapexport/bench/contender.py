"""Whatever can be measured in turn with others: a prompt in, then one token after another.

A contender keeps no time. `EngineContender` is a build of ours; a peer joins a run by an `Entrant`
of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from snapexport.bench.costs import Costs
from snapexport.runtime.executor import Executor
from snapexport.runtime.requests import SamplingParams
from snapexport.runtime.sampling import generator, sample
from snapexport.runtime.scheduler import Chunk, Scheduler

_GREEDY = SamplingParams()


class Contender(Protocol):
    """One model, loaded, with slots for several requests."""

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        """From a prompt to its first token, from which the slot will go on."""
        ...

    def decode(self, active: int) -> None:
        """One more token for each of the slots below `active`; the others may be lost."""
        ...


@dataclass(frozen=True)
class Entrant:
    """A contender that is not loaded yet.

    load: makes it; picklable, since memory is measured in a process of its own. batch, longest
    prompt and positions are its limits. costs: for the floors; None where they are not known.
    cache_bytes: of all its caches, likewise.
    """

    name: str
    load: Callable[[], Contender]
    batch: int
    longest_prompt: int
    positions: int
    costs: Costs | None = None
    cache_bytes: int | None = None


class EngineContender:
    """An engine driven without a scheduler's queue: prompts alone, then decode steps alone.

    Chunks and greedy sampling are the runtime's own. The cost of its queue, its text and its stop
    strings is not in here: `load/` measures whole requests.
    """

    def __init__(self, engine: Executor) -> None:
        self._engine = engine
        self._inputs = np.zeros((3, engine.limits.batch), np.int64)
        self._rng = generator(_GREEDY)

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        """All its chunks."""
        for chunk in chunks(len(prompt), self._engine.limits.prefill_chunk):
            tokens = prompt[chunk.start : chunk.end]
            said = self._engine.prefill(slot, tokens, chunk.start, len(prompt))
        self._inputs[:, slot] = sample(said, _GREEDY, self._rng), len(prompt), len(prompt)

    def decode(self, active: int) -> None:
        """A step of the first slots."""
        said = self._engine.decode(*self._inputs[:, :active])
        for slot in range(active):
            self._inputs[0, slot] = sample(said[slot], _GREEDY, self._rng)
        self._inputs[1, :active] += 1


def chunks(length: int, chunk: int) -> Iterator[Chunk]:
    """The chunks of a prompt that is alone, as the runtime's scheduler cuts them."""
    scheduler = Scheduler(batch=1, chunk=chunk)
    scheduler.add(0, length)
    while True:
        for part in scheduler.schedule().prefill:
            yield part
            if part.is_last:
                return
