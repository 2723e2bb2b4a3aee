"""The vote's hit rate (SnapKV, Eq. 4 to 8): of what generated tokens look at, how much was kept.

A decoded token looks at a prompt position where its attention, over the full cache, exceeds theta.
Only eligible positions count: sinks and ring are held whatever the vote says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry, LayerGeometry
from snapexport.eval.arena import Arena
from snapexport.eval.contestants import Contestant
from snapexport.eval.plan import Plan
from snapexport.eval.questions import Cell
from snapexport.eval.tasks import Sample
from snapexport.runtime.executor import Executor
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams

THETA = 0.05
"""SnapKV's threshold."""

Counts = NDArray[np.int64]


@dataclass
class HitRate:
    """By layer and decoded token: what was looked at, and what of it had been kept.

    hits, seen: int64 [layers, steps]. A layer that doesn't vote is never counted.
    """

    contestant: str
    slots: int
    hits: Counts
    seen: Counts
    prompts: int = 0

    @classmethod
    def zero(cls, contestant: Contestant, steps: int) -> "HitRate":
        """Nothing counted yet."""
        shape = contestant.geometry.num_layers, steps
        hits, seen = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        return cls(contestant.name, contestant.slots, hits, seen)

    def add(
        self, step: int, layer: int, kept: NDArray[np.bool_], looked: NDArray[np.bool_]
    ) -> None:
        """Count one layer of one step: kept and looked at, bool [H, eligible]."""
        self.hits[layer, step] += int((kept & looked).sum())
        self.seen[layer, step] += int(looked.sum())

    def report(self) -> dict[str, Any]:
        """For JSON: rates by layer and by step, null where nothing was looked at."""
        return {
            "contestant": self.contestant,
            "slots": self.slots,
            "prompts": self.prompts,
            "theta": THETA,
            "by_layer": _rates(self.hits.sum(1), self.seen.sum(1)),
            "by_step": _rates(self.hits.sum(0), self.seen.sum(0)),
            "by_layer_and_step": [_rates(*pair) for pair in zip(self.hits, self.seen, strict=True)],
        }


@dataclass(frozen=True)
class Vote:
    """What one contestant kept of a prompt, by layer [Hkv, K], and where its hits are counted."""

    geometry: CacheGeometry
    kept: list[Counts]
    rate: HitRate


def measure(plan: Plan, arena: Arena, steps: int = 64) -> list[HitRate]:
    """Watch the full cache answer, and count for each contestant that votes."""
    voting = [contestant for contestant in plan.contestants if contestant.votes]
    cells = _cells(plan)
    if not voting or not cells:
        return []
    watcher = arena.watch(voting[0].geometry.as_full())
    llms = arena.load(voting)
    rates = [HitRate.zero(contestant, steps) for contestant in voting]
    for cell in cells:
        sample = plan.questions.sample(cell)
        prompt = plan.questions.request(sample, cell, "aware").prompt
        votes = [
            Vote(contestant.geometry, _kept(llm, prompt), rate)
            for contestant, llm, rate in zip(voting, llms, rates, strict=True)
        ]
        _watch(sample, prompt, watcher, votes, steps)
    return rates


def _cells(plan: Plan) -> list[Cell]:
    """Some prompts of each task, of the longest length, spread over the depths."""
    longest = [c for c in plan.questions.cells() if c.length == plan.questions.lengths[-1]]
    by_task = [[c for c in longest if c.task == task] for task in plan.options.tasks]
    return [cell for cells in by_task for cell in _spread(cells, plan.hit_samples)]


def _spread(cells: list[Cell], count: int) -> list[Cell]:
    """The middles of so many equal parts."""
    count = min(count, len(cells))
    return [cells[(2 * i + 1) * len(cells) // (2 * count)] for i in range(count)]


def _kept(llm: LLM, prompt: Sequence[int]) -> list[Counts]:
    """What the vote keeps of a prompt, by layer [Hkv, K]."""
    llm.generate([prompt], SamplingParams(max_tokens=1))
    kept = llm.executor.topk_positions()
    assert kept is not None
    return kept


def _watch(
    sample: Sample,
    prompt: Sequence[int],
    watcher: tuple[LLM, Executor],
    votes: Sequence[Vote],
    steps: int,
) -> None:
    """Let the full cache answer, and count each of its decode steps."""
    llm, engine = watcher
    params = SamplingParams(max_tokens=min(sample.max_tokens, steps), stop=sample.stop)
    # The first token comes from prefill: there is no decode step to watch.
    for step, _ in enumerate(llm.stream(prompt, params), start=-1):
        if step >= 0:
            for vote in votes:
                _count(vote, engine, len(prompt), step)
    for vote in votes:
        vote.rate.prompts += 1


def _count(vote: Vote, engine: Executor, length: int, step: int) -> None:
    for layer, place in enumerate(vote.geometry.layers):
        if place.K:
            looked = _looked_at(engine, layer, length, step, place)
            vote.rate.add(step, layer, _mask(vote.kept[layer], looked, place), looked)


def _looked_at(
    engine: Executor, layer: int, length: int, step: int, place: LayerGeometry
) -> NDArray[np.bool_]:
    """Which eligible have a share above theta of each query head's attention: [H, n]."""
    keys = engine.decode_buffers[names.past_key(layer)][0, :, : length + step + 1]
    query = engine.decode_buffers[names.query(layer)][0, :, 0]
    grouped = query.reshape(len(keys), -1, query.shape[-1]).astype(np.float32)
    scores = grouped @ keys.astype(np.float32).swapaxes(1, 2)
    scores -= scores.max(-1, keepdims=True)
    attention = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    span = slice(place.L_sink, max(place.L_sink, length - place.L_recent))
    looked: NDArray[np.bool_] = attention.reshape(len(query), -1)[:, span] > THETA
    return looked


def _mask(kept: Counts, looked: NDArray[np.bool_], place: LayerGeometry) -> NDArray[np.bool_]:
    """Kept positions [Hkv, K] as a mask of the eligible positions for each query head [H, n]."""
    heads, eligible = looked.shape
    mask = np.zeros((len(kept), eligible), np.bool_)
    for row, positions in zip(mask, kept, strict=True):
        row[positions[positions >= 0] - place.L_sink] = True
    return mask.repeat(heads // len(kept), axis=0)


def _rates(hits: Counts, seen: Counts) -> list[float | None]:
    return [round(int(h) / int(n), 4) if n else None for h, n in zip(hits, seen, strict=True)]
