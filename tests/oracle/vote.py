"""SnapKV's vote, in float64: which eligible positions of a prompt a layer and KV head keep."""

import torch
from torch import Tensor

from snapexport.contract.geometry import CacheGeometry, LayerGeometry

_GRAIN = 2.0**46
"""Votes are rounded to its inverse: sums of such numbers are exact, so that equal sums are ties."""


def vote(
    window: Tensor,
    key: Tensor,
    layer: LayerGeometry,
    geometry: CacheGeometry,
    scaling: float,
    softcap: float | None = None,
) -> Tensor:
    """Score of every eligible position, float64 [Hkv, n].

    window: post-RoPE queries of the last L_obs prompt tokens [H, W, D]; key [Hkv, L, D].
    """
    heads, length, dim = key.shape
    span = slice(layer.L_sink, max(layer.L_sink, length - layer.L_recent))
    if len(range(length)[span]) == 0:
        return key.new_zeros(heads, 0, dtype=torch.float64)
    queries = window.double().reshape(heads, -1, window.shape[1], dim)
    scores = queries @ key.double()[:, None].mT * scaling
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    share = _share(scores, span, geometry.softmax)
    votes = share.pow(2).sum(2) if geometry.vote == "sum-squares" else share.sum(2)
    pooled = _pooled((votes * _GRAIN).round() / _GRAIN, geometry)
    if geometry.group == "max":
        return pooled.amax(1)
    return pooled.sum(1) / (pooled.shape[1] if geometry.group == "mean" else 1)


def _share(scores: Tensor, span: slice, softmax: str) -> Tensor:
    """Attention of each query [Hkv, G, W, L] -> the eligible positions' share [Hkv, G, W, n]."""
    if softmax == "candidates":
        return scores[..., span].softmax(-1)
    rows, length = scores.shape[-2:]
    seen = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)[..., span]


def _pooled(votes: Tensor, geometry: CacheGeometry) -> Tensor:
    """Votes [Hkv, G, n], each with its neighbours; zeros beyond the eligible count in a mean."""
    reach = geometry.pool_kernel // 2
    windows = torch.nn.functional.pad(votes, (reach, reach)).unfold(-1, geometry.pool_kernel, 1)
    return windows.amax(-1) if geometry.pool == "max" else windows.sum(-1) / geometry.pool_kernel


def keep(scores: Tensor, layer: LayerGeometry) -> Tensor:
    """Positions of the K best eligible positions, ascending int64 [Hkv, K], -1 where unused."""
    ranked = torch.sort(scores, dim=-1, descending=True, stable=True)
    order = ranked.indices[:, : layer.K]
    kept = torch.full((scores.shape[0], layer.K), -1)
    kept[:, : order.shape[1]] = order.sort(-1).values + layer.L_sink
    return kept


def gap(scores: Tensor, budget: int) -> Tensor:
    """How far the last kept score is from the first dropped one, as a share of it [Hkv].

    Infinite where nothing is dropped. Where it is near zero, rounding may decide.
    """
    if budget == 0 or scores.shape[1] <= budget:
        return torch.full(scores.shape[:1], torch.inf, dtype=torch.float64)
    ranked = scores.sort(-1, descending=True).values
    return 1 - ranked[:, budget] / ranked[:, budget - 1]
