"""SnapKV's vote, in float64: which candidates of a prompt a layer and KV head keep."""

import torch
from torch import Tensor

from snapexport.contract.geometry import LayerGeometry

_GRAIN = 2.0**46
"""Votes are rounded to its inverse: sums of such numbers are exact, so that equal sums are ties."""


def vote(window: Tensor, key: Tensor, layer: LayerGeometry, pool: int, scaling: float) -> Tensor:
    """Score of every candidate, float64 [Hkv, n].

    window: post-RoPE queries of the last L_obs prompt tokens [H, W, D]; key [Hkv, L, D].
    """
    candidates = key[:, layer.L_sink : max(layer.L_sink, key.shape[1] - layer.L_recent)].double()
    heads, count, dim = candidates.shape
    if count == 0:
        return candidates.new_zeros(heads, 0)
    queries = window.double().reshape(heads, -1, window.shape[1], dim)
    attention = (queries @ candidates[:, None].mT * scaling).softmax(-1)
    votes = (attention.sum(2) * _GRAIN).round() / _GRAIN
    padded = torch.nn.functional.pad(votes, (pool // 2, pool // 2))
    return padded.unfold(-1, pool, 1).sum(-1).sum(1) / (pool * votes.shape[1])


def keep(scores: Tensor, layer: LayerGeometry) -> Tensor:
    """Positions of the K best candidates, ascending int64 [Hkv, K], -1 where unused."""
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
