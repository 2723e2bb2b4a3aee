"""The answers of a tiny model whose prompt is taken sparsely, in float64 and by masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from snapexport.contract.geometry import CacheGeometry
from tests.graphs.layered import Layered
from tests.graphs.layered_answer import Answer, _Run


@dataclass
class _Sparse(_Run):
    """budget: positions of the past that a chunk amid the prompt sees. block: of a block.

    is_sparse: the chunk that is fed now. doubt: the smallest distance of a choice from another.
    """

    budget: int = 0
    chunk: int = 0
    block: int = 0
    is_sparse: bool = False
    doubt: float = 1.0

    def take(self, prompt: Sequence[int]) -> np.ndarray:
        """Logits [n,V] of the last chunk. Only its queries vote."""
        starts = [*range(0, max(1, len(prompt) - self.chunk), self.chunk)]
        for start in starts:
            self.is_sparse = start > self.budget
            self.feed(prompt[start : start + self.chunk], start)
        last = max(0, len(prompt) - self.chunk)
        for held in (self.keys, self.values):
            for layer in held:
                held[layer] = held[layer][:, :last]
        self.is_sparse = False
        self.kept.clear()
        self.gaps.clear()
        return self.feed(prompt[last:], last)

    def _visible(self, layer: int, positions: Tensor, query: Tensor) -> Tensor:
        seen, one = super()._visible(layer, positions, query), self.model.layers[layer]
        if not self.is_sparse or one.window or one.chunk:
            return seen
        past, keys = int(positions[0]), self.keys[self.model.source(layer)]
        held, doubt = seen_blocks(query, keys, past, one.scale, self.budget, self.block)
        self.doubt = min(self.doubt, doubt)
        return seen & held[:, None]


def seen_blocks(
    query: Tensor, keys: Tensor, past: int, scale: float, budget: int, block: int
) -> tuple[Tensor, float]:
    """The positions that a sparse chunk of queries [H,C,D] sees of keys [Hkv,N,D]: bool [Hkv,N].

    Of the past the first block, the latest half of the budget, and the best others; and all that
    follows. Also the smallest distance of that choice from another.
    """
    count, heads = budget // block, len(keys)
    means = keys[:, :past].double().unflatten(1, (-1, block)).mean(2)
    asked = query.double().unflatten(1, (-1, block)).mean(2).unflatten(0, (heads, -1))
    found = torch.zeros(means.shape[:2], dtype=torch.bool)
    found[:, 0] = found[:, means.shape[1] - count // 2 :] = True
    others, room, doubt = ~found[0], count - int(found[0].sum()), 1.0
    votes = (asked @ means[:, None].mT * scale)[..., others].softmax(-1).sum((1, 2))
    best = votes.sort(descending=True, stable=True)
    if room < votes.shape[1]:
        doubt = float((best.values[:, room - 1] - best.values[:, room]).min())
    chosen = torch.zeros_like(votes, dtype=torch.bool)
    found[:, others] = chosen.scatter_(1, best.indices[:, :room], True)
    held = torch.ones(keys.shape[:2], dtype=torch.bool)
    held[:, :past] = found.repeat_interleave(block, 1)
    return held, doubt


@cache
def sparse_answer(
    model: Layered,
    geometry: CacheGeometry,
    prompt: tuple[int, ...],
    steps: int,
    *,
    budget: int,
    chunk: int,
    block: int,
) -> tuple[Answer, float]:
    """As `answer`, and the smallest distance of a choice of blocks from another."""
    run = _Sparse(model, geometry, len(prompt), budget=budget, chunk=chunk, block=block)
    logits = [run.take(prompt)[-1]]
    for step in range(steps):
        logits.append(run.feed([int(logits[-1].argmax())], len(prompt) + step)[-1])
    kept = {cache: one.numpy() for cache, one in run.kept.items()}
    tokens = [int(row.argmax()) for row in logits]
    return Answer(np.stack(logits), tokens, kept, min(run.gaps, default=1.0)), run.doubt
