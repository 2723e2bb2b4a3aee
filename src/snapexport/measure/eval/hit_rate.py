"""Measures the vote's hit rate (SnapKV, Eq. 4 to 8): how much of what an answer looks at was kept.

A decoded token looks at a prompt position where its attention over the full cache exceeds theta.
Only eligible positions count: sinks and ring are held whatever the vote says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.measure.eval.grid import Grid
from snapexport.measure.eval.loaded_systems import LoadedSystems
from snapexport.measure.eval.requests import Cell
from snapexport.measure.eval.sample import Sample
from snapexport.measure.eval.systems import System
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams

THETA = 0.05
"""SnapKV's threshold."""

Counts = NDArray[np.int64]


@dataclass
class HitRate:
    """Positions looked at (seen), and those of them that the vote had kept (hits).

    Both int64 [layers, steps]. A layer that doesn't vote is never counted.
    """

    system: str
    slots: int
    hits: Counts
    seen: Counts
    prompts: int = 0

    @classmethod
    def zero(cls, system: System, steps: int) -> "HitRate":
        """Nothing counted yet."""
        shape = system.geometry.slots.num_layers, steps
        hits, seen = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        return cls(system.name, system.slots, hits, seen)

    def add(
        self, step: int, layer: int, kept: NDArray[np.bool_], looked: NDArray[np.bool_]
    ) -> None:
        """Count one layer of one step: kept and looked at, bool [H, eligible]."""
        self.hits[layer, step] += int((kept & looked).sum())
        self.seen[layer, step] += int(looked.sum())

    def report(self) -> dict[str, Any]:
        """For JSON: rates by layer and by step, null where nothing was looked at."""
        return {
            "system": self.system,
            "slots": self.slots,
            "prompts": self.prompts,
            "theta": THETA,
            "by_layer": _rates(self.hits.sum(1), self.seen.sum(1)),
            "by_step": _rates(self.hits.sum(0), self.seen.sum(0)),
            "by_layer_and_step": [_rates(*pair) for pair in zip(self.hits, self.seen, strict=True)],
        }


@dataclass(frozen=True)
class Vote:
    """The positions that one system kept of a prompt, and its counts.

    kept: for each layer with a cache [Hkv, K].
    """

    geometry: CacheGeometry
    kept: list[Counts]
    rate: HitRate


def measure(grid: Grid, loaded: LoadedSystems, steps: int = 64) -> list[HitRate]:
    """Count, while the full cache answers, for each system that votes."""
    voting = [system for system in grid.systems if system.votes]
    cells = _cells(grid)
    if not voting or not cells:
        return []
    watcher = loaded.watch(voting[0].geometry.as_full())
    llms = loaded.load(voting)
    rates = [HitRate.zero(system, steps) for system in voting]
    for cell in cells:
        sample = grid.requests.sample(cell)
        prompt = grid.requests.request(sample, cell, "aware").prompt
        votes = [
            Vote(system.geometry, _vote(llm, prompt), rate)
            for system, llm, rate in zip(voting, llms, rates, strict=True)
        ]
        _watch(sample, prompt, watcher, votes, steps)
    return rates


def _cells(grid: Grid) -> list[Cell]:
    """Some prompts of each task, of the longest length, spread over the depths."""
    longest = [c for c in grid.requests.cells() if c.length == grid.requests.lengths[-1]]
    by_task = [[c for c in longest if c.task == task] for task in grid.options.chosen_tasks]
    return [cell for cells in by_task for cell in _spread(cells, grid.hit_samples)]


def _spread(cells: list[Cell], count: int) -> list[Cell]:
    """The cells in the middles of `count` equal parts."""
    count = min(count, len(cells))
    return [cells[(2 * i + 1) * len(cells) // (2 * count)] for i in range(count)]


def _vote(llm: LLM, prompt: Sequence[int]) -> list[Counts]:
    llm.generate([prompt], SamplingParams(max_tokens=1))
    kept = llm.executor.topk_positions()
    assert kept is not None
    return kept


def _watch(
    sample: Sample, prompt: Sequence[int], watcher: LLM, votes: Sequence[Vote], steps: int
) -> None:
    """Count each decode step of the full cache's answer."""
    assert isinstance(watcher.executor, Executor), "one process measures"
    params = SamplingParams(max_tokens=min(sample.max_tokens, steps), stop=sample.stop)
    # The first token comes from prefill: there is no decode step to watch.
    for step, _ in enumerate(watcher.stream(prompt, params), start=-1):
        if step >= 0:
            for vote in votes:
                _count(vote, watcher.executor, len(prompt), step)
    for vote in votes:
        vote.rate.prompts += 1


def _count(vote: Vote, executor: Executor, length: int, step: int) -> None:
    for (layer, place), kept in zip(vote.geometry.narrowest.items(), vote.kept, strict=True):
        if place.K:
            looked = _looked_at(executor, layer, length, step, place)
            vote.rate.add(step, layer, _mask(kept, looked, place), looked)


def _looked_at(
    executor: Executor, layer: int, length: int, step: int, place: LayerGeometry
) -> NDArray[np.bool_]:
    """The eligible positions with more than theta of each query head's attention: bool [H, n]."""
    buffers, end = executor.decode_buffers, length + step + 1
    query, keys = buffers[names.query(layer)][0, :, 0], buffers[names.past_key(layer)][0, :, :end]
    if query.shape[-1] > keys.shape[-1]:  # latent attention scores the cached values too
        keys = np.concatenate([keys, buffers[names.past_value(layer)][0, :, :end]], axis=-1)
    grouped = query.reshape(len(keys), -1, query.shape[-1]).astype(np.float32)
    scores = grouped @ keys.astype(np.float32).swapaxes(1, 2)
    scores -= scores.max(-1, keepdims=True)
    attention = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    span = slice(place.L_sink, place.L_sink + place.eligible(length))
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
