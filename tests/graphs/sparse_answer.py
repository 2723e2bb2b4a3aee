"""The answers of a tiny model whose prompt is taken sparsely, in float64 and by masks."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        chosen = self._blocks(query, keys[:, :past], one.scale)
        held = torch.zeros(keys.shape[:2], dtype=torch.bool)
        held[:, past:] = True
        held[:, :past] = chosen.repeat_interleave(self.block, 1)
        return seen & held[:, None]

    def _blocks(self, query: Tensor, keys: Tensor, scale: float) -> Tensor:
        """Bool [Hkv,blocks]: the first, the latest half of the budget, and the best others."""
        count, heads = self.budget // self.block, len(keys)
        means = keys.unflatten(1, (-1, self.block)).mean(2)
        asked = query.unflatten(1, (-1, self.block)).mean(2).unflatten(0, (heads, -1))
        found = torch.zeros(means.shape[:2], dtype=torch.bool)
        found[:, 0] = found[:, means.shape[1] - count // 2 :] = True
        others = ~found[0]
        scores = (asked @ means[:, None].mT * scale)[..., others]
        votes = scores.softmax(-1).sum((1, 2))
        best = votes.sort(descending=True, stable=True)
        room = count - int(found[0].sum())
        if room < votes.shape[1]:
            gaps = best.values[:, room - 1] - best.values[:, room]
            self.doubt = min(self.doubt, float(gaps.min()))
        chosen = torch.zeros_like(votes, dtype=torch.bool)
        chosen.scatter_(1, best.indices[:, :room], True)
        found[:, others] = chosen
        return found


def sparse_answer(
    model: Layered,
    geometry: CacheGeometry,
    prompt: Sequence[int],
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
