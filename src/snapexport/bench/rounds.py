"""Takes the measurements of a plan, in turn, so that a drift of the machine hits all alike.

Keeps the time, and knows neither engines nor files.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from snapexport.bench.contender import Contender
from snapexport.bench.hand_over import HandOver
from snapexport.bench.plan import Plan, Visit
from snapexport.bench.probes import Probe
from snapexport.bench.samples import Measure, Sample

Clock = Callable[[], float]

SHORT = 4
"""How often probes and hand-overs are timed in each round: they take little, and scatter much."""


@dataclass(frozen=True)
class Bench:
    """What is measured, loaded. hand_over: with the name of the contender whose it is."""

    plan: Plan
    contenders: dict[str, Contender]
    vocab_size: int
    probes: Sequence[Probe]
    hand_over: tuple[str, HandOver] | None
    clock: Clock

    def samples(self) -> Iterator[Sample]:
        """Every measurement as it is taken, after a warm-up that is not told."""
        self._warm_up()
        for round in range(self.plan.repeat):
            yield from self._probe()
            for visit in self.plan.visits(round, len(self.contenders)):
                yield from self._visit(visit)
            yield from self._hand_overs()

    def _warm_up(self) -> None:
        """The longest prompt in a slot, and some steps: memory is touched, threads are there."""
        visit = Visit(self.plan.repeat, 0, self.plan.contexts[-1])
        prompt = prompts(self.plan, visit, self.vocab_size)[0]
        for contender in self.contenders.values():
            contender.prefill(0, prompt)
            for _ in range(self.plan.decode_steps):
                contender.decode(1)
        for _ in (*self._probe(), *self._hand_overs()):
            pass

    def _probe(self) -> Iterator[Sample]:
        for probe in SHORT * list(self.probes):
            yield Sample(probe.measure, probe.amount / self._timed(probe.run))

    def _visit(self, visit: Visit) -> Iterator[Sample]:
        name, contender = list(self.contenders.items())[visit.contender]
        for slot, prompt in enumerate(prompts(self.plan, visit, self.vocab_size)):
            seconds = self._timed(partial(contender.prefill, slot, prompt))
            yield Sample("prefill", seconds, name, visit.context)
        for active in self.plan.batches:
            for _ in range(self.plan.decode_steps):
                seconds = self._timed(partial(contender.decode, active))
                yield Sample("decode", seconds, name, visit.context, active)

    def _hand_overs(self) -> Iterator[Sample]:
        if self.hand_over is None:
            return
        name, hand_over = self.hand_over
        parts: list[tuple[Measure, Callable[[], None]]] = [("hand_over", hand_over.whole.run)]
        if hand_over.vote:
            parts.append(("vote", hand_over.vote.run))
        for context in self.plan.contexts:
            hand_over.set_length(context)
            for measure, run in SHORT * parts:
                yield Sample(measure, self._timed(run), name, context)

    def _timed(self, action: Callable[[], None]) -> float:
        started = self.clock()
        action()
        return self.clock() - started


def prompts(plan: Plan, visit: Visit, vocab_size: int) -> list[list[int]]:
    """Random tokens for each slot: the same for all contenders, never the same twice in a run."""
    rng = np.random.default_rng([plan.seed, visit.round, visit.context])
    drawn: list[list[int]] = rng.integers(0, vocab_size, (plan.slots, visit.context)).tolist()
    return drawn
