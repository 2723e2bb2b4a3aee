"""Computes SnapKV's vote and the compressed cache in float64, with torch, for tests and GPU checks.

Runs where its inputs are, a CPU or a GPU. Written from the definitions, not from the kernels.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from snapexport.plugins.binding import GatherProblem, SelectProblem


_GRAIN = 2.0**46
"""Votes are rounded to multiples of its inverse, so that sums are exact and equal sums are ties."""


@dataclass(frozen=True)
class Vote:
    """Parameters of a vote. softcap: 0: none. The options are SnapKVSelect's."""

    pool_kernel: int
    scale: float
    softcap: float = 0.0
    softmax: str = "candidates"
    vote: str = "sum"
    pool: str = "avg"
    group: str = "mean"

    def scores(self, query: "Tensor", key: "Tensor", span: range) -> "Tensor":
        """Scores that rank the eligible positions `span`, float64 [Hkv,n].

        query [H,W,D]: of the last W prompt positions. key [Hkv,L,D]: of the prompt.
        """
        import torch

        heads, window = key.shape[0], query.shape[1]
        if not span:
            return key.new_zeros(heads, 0, dtype=torch.float64)
        queries = query.double().reshape(heads, -1, window, query.shape[2])
        products = queries @ key.double()[:, None].mT * self.scale
        if self.softcap:
            products = self.softcap * (products / self.softcap).tanh()
        share = self._share(products, span)
        votes = share.square().sum(2) if self.vote == "sum-squares" else share.sum(2)
        pooled = self._pool((votes * _GRAIN).round() / _GRAIN)
        if self.group == "max":
            return pooled.amax(1)
        return pooled.sum(1) / (pooled.shape[1] if self.group == "mean" else 1)

    def _share(self, products: "Tensor", span: range) -> "Tensor":
        """Each query's attention, by key [Hkv,G,W,L] -> by eligible position [Hkv,G,W,n]."""
        part = slice(span.start, span.stop)
        if self.softmax == "candidates":
            return products[..., part].softmax(-1)
        rows, length = products.shape[-2:]
        seen = products.new_ones(rows, length).tril(length - rows).bool()
        return products.masked_fill(~seen, -math.inf).softmax(-1)[..., part]

    def _pool(self, votes: "Tensor") -> "Tensor":
        """Each vote with its neighbours, zeros beyond the eligible: [Hkv,G,n] -> [Hkv,G,n]."""
        import torch

        width, before = self.pool_kernel, (self.pool_kernel - 1) // 2
        padded = torch.nn.functional.pad(votes, (before, width - 1 - before))
        if self.pool == "max":
            return torch.nn.functional.max_pool1d(padded, width, 1)
        return torch.nn.functional.avg_pool1d(padded, width, 1)


def eligible(p: "SelectProblem", length: int) -> range:
    """Positions that neither sinks nor ring hold; none if the cache slots hold the prompt."""
    is_whole = length <= p.sink + p.recent + p.K
    return range(p.sink, p.sink if is_whole else length - p.recent)


def scores(p: "SelectProblem", query: "Tensor", key: "Tensor", length: int) -> "Tensor":
    """Scores that rank the eligible positions, float64 [Hkv,n]. query [H,W,D], key [Hkv,T,D]."""
    vote = Vote(
        p.pool_kernel,
        p.scale,
        p.softcap,
        softmax="causal" if p.causal else "candidates",
        vote="sum-squares" if p.squares else "sum",
        pool="max" if p.pool_max else "avg",
        group="max" if p.group_max else "mean",
    )
    return vote.scores(query, key[:, :length], eligible(p, length))


def complaint(
    p: "SelectProblem", scores: "Tensor", positions: "Tensor", length: int, tolerance: float
) -> str:
    """The first fault of the kept positions int64 [Hkv,K], or an empty result."""
    return wrong_choice(scores, positions, eligible(p, length), tolerance)


def wrong_choice(scores: "Tensor", positions: "Tensor", span: range, tolerance: float) -> str:
    """The first fault of the positions int64 [Hkv,K] that were kept of `span`, or an empty result.

    scores [Hkv,n]: that rank them. Those within `tolerance` (a share) of the last kept one may be
    ranked either way.
    """
    count = min(len(span), positions.shape[1])
    if not bool((positions[:, count:] == -1).all()):
        return "unused slots are not -1"
    kept = positions[:, :count] - span.start
    if count == 0:
        return ""
    if not bool(((kept >= 0) & (kept < len(span))).all()):
        return "positions that are not eligible"
    if not bool((kept.diff(dim=1) > 0).all()):
        return "positions that do not ascend"
    return _wrong_winners(scores, kept, count, tolerance)


def _wrong_winners(scores: "Tensor", kept: "Tensor", count: int, tolerance: float) -> str:
    last = scores.topk(count, dim=1).values[:, -1:]
    won = scores.gather(1, kept)
    lost = scores.scatter(1, kept, -1.0)
    if bool((won < last * (1 - tolerance)).any()):
        return f"kept {float((won / last).min()):.6f} of the last winner's vote"
    if bool((lost > last * (1 + tolerance)).any()):
        return f"dropped {float((lost / last).max()):.6f} of the last winner's vote"
    return ""


def gather(p: "GatherProblem", cache: "Tensor", positions: "Tensor", length: int) -> "Tensor":
    """The compressed cache [Hkv,S,D] of one of keys and values [Hkv,T,D]; positions [Hkv,K]."""
    import torch

    ring = p.recent + p.spare
    slots = p.sink + ring + p.K
    sources = torch.full((p.kv_heads, slots), -1, device=cache.device)
    if length <= slots - p.spare:
        sources[:, :length] = torch.arange(length, device=cache.device)
    else:
        for position in range(length):
            slot = p.sink + (position - p.sink) % ring
            sources[:, position if position < p.sink else slot] = position
        sources[:, slots - p.K :] = positions
    rows = cache.gather(1, sources.clamp(min=0)[..., None].expand(-1, -1, p.head_dim))
    return rows.where((sources >= 0)[..., None], 0)
