"""Computes the expected answer of a build that takes a prompt in turns, compressing after each.

A turn's tokens attend to what the turns before left, and to each other. Then the turn's last
queries vote over everything that its last token saw, as if that were a whole prompt. After a turn
the prompt's last tokens may vote, as if the text went on with them: then they are forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry

from .masked import (
    CLEAR_TOKEN,
    CLEAR_VOTE,
    MASKED,
    Scoring,
    caches_of,
    causal,
    fed,
    greedy,
    greedy_gap,
    load,
    rings,
    voted,
)
from .on_disk import kept
from .routing import watched
from .vote import gap, keep, vote


@dataclass(frozen=True)
class TurnsRun:
    """logits [V]: after each turn, then of each decode step. tokens: as in OracleRun.

    kept: after each turn and for each layer, positions [Hkv,K] ascending, -1 unused. gap: the
    smallest distance of a vote from changing. clear_routing: as in `routing`.
    """

    logits: list[NDArray[np.float32]]
    tokens: list[int]
    kept: list[list[NDArray[np.int64]]]
    gap: float
    clear_routing: bool

    @property
    def is_clear(self) -> bool:
        """Whether rounding changes no token, no vote and no expert."""
        is_clear_token = greedy_gap(np.stack(self.logits)) > CLEAR_TOKEN
        return self.clear_routing and is_clear_token and self.gap > CLEAR_VOTE


@kept
def run(
    model_dir: Path,
    turns: Sequence[Sequence[int]],
    geometry: CacheGeometry,
    steps: int,
    voters: Sequence[int] = (),
) -> TurnsRun:
    """All turns, then `steps` tokens greedily from what is kept.

    voters: how many of the last turn's last tokens vote after each turn; none if empty.
    """
    memory, model, past = TurnMemory(geometry, turns), load(model_dir, MASKED), DynamicCache()
    logits, kept, layers = [], [], range(geometry.slots.num_caches)
    with watched(model) as routing:
        for turn, count in zip(turns, voters or [0] * len(turns), strict=True):
            voting, memory.voters = turns[-1][len(turns[-1]) - count :], count
            logits.append(fed(model, past, [*turn, *voting], memory))
            if count:
                past.crop(-count)
            kept.append([memory.kept[layer].numpy() for layer in layers])
        memory.voters = 0
        decoded = greedy(model, past, logits.pop(), steps, memory)
    tokens, gap = decoded.argmax(-1).tolist(), min(memory.gaps, default=1.0)
    return TurnsRun([*logits, *decoded], tokens, kept, gap, routing.clear)


@dataclass
class TurnMemory:
    """The positions that each layer and KV head may see."""

    geometry: CacheGeometry
    turns: Sequence[Sequence[int]]
    voters: int = 0
    """Of the tokens that are fed next, the last ones, which are not kept."""
    kept: dict[int, Tensor] = field(default_factory=dict)
    before: dict[int, Tensor] = field(default_factory=dict)
    """By layer: the positions that a vote had kept when the tokens that are fed came."""
    gaps: list[float] = field(default_factory=list)
    first: int = 0

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        """Bool [Hkv,Q,N], or [1,Q,N] for all, for query [H,Q,D] and all keys [Hkv,N,D]."""
        (_, shape, _), *_ = caches = caches_of(self.geometry, layer)
        (_, rows, _), total = query.shape, key.shape[1]
        every = torch.arange(total)
        if (source := self.geometry.slots.source(layer)) == layer:
            self.first = total - rows  # layers that read another's cache take the last row alone
            self.before[layer] = torch.zeros((1, total), dtype=torch.bool)
            if caches[0].cache in self.kept:
                self.before[layer] = voted(self.geometry, layer, self.kept, every)
        first = self.first
        prompt_length = sum(map(len, self.turns))
        is_turn = first < prompt_length
        newest, before = (first, first) if is_turn else (total, prompt_length)
        recent = every >= newest - rings(self.geometry, layer, before)
        held = (every < shape.L_sink) | recent | self.before[source]
        visible = held[:, None] & causal(rows, total)
        if is_turn:
            visible = visible | (causal(rows, total) & (every >= first))
            seen = visible[:, -1] & (every < total - self.voters)
            if source == layer:
                self._vote(layer, query, key, seen, scoring)
        return visible

    def _vote(self, layer: int, query: Tensor, key: Tensor, seen: Tensor, scoring: Scoring) -> None:
        """seen: bool [Hkv,N], or [1,N] for all."""
        rows, width = query.shape[1], self.geometry.vote.L_obs
        window = query[:, [rows - 1 - (width - 1 - i) % rows for i in range(width)]]
        queries = query.shape[0] // key.shape[0]
        for index, shape, heads in caches_of(self.geometry, layer):
            own = window.unflatten(0, (-1, queries))[heads].flatten(0, 1)
            held = seen if len(seen) == 1 else seen[heads]
            self._keep(index, shape, own, key[heads], held, scoring)

    def _keep(
        self,
        of: int,
        shape: LayerGeometry,
        window: Tensor,
        key: Tensor,
        seen: Tensor,
        scoring: Scoring,
    ) -> None:
        """of: the cache. seen: bool [Hkv,N], equally many in each head."""
        entries = torch.stack([row.nonzero()[:, 0] for row in seen])
        index = entries.expand(key.shape[0], -1)[..., None].expand(-1, -1, key.shape[2])
        scores = vote(window, key.gather(1, index), shape, self.geometry, *scoring)
        chosen = keep(scores, shape)
        held = entries.expand(chosen.shape[0], -1)
        self.kept[of] = torch.where(chosen < 0, -1, held.gather(1, chosen.clamp(min=0)))
        gaps = gap(scores, shape.K)
        self.gaps += gaps[gaps > 0].tolist()  # a tie is no doubt


@cache
def first_clear(
    model_dir: Path,
    lengths: tuple[int, ...],
    geometry: CacheGeometry,
    steps: int,
    vocabulary: int,
    voters: tuple[int, ...] = (),
) -> tuple[list[list[int]], TurnsRun]:
    """Random turns of these lengths whose answer is clear, and the answer. voters: as in `run`."""
    for seed in range(100):
        rng = np.random.default_rng([*lengths, seed])
        turns = [rng.integers(3, vocabulary, n).tolist() for n in lengths]
        if (found := run(model_dir, turns, geometry, steps, voters)).is_clear:
            return turns, found
    raise AssertionError(f"no clear turns of {lengths}")
