"""SnapKV's vote, in float64: which eligible positions of a prompt a layer and KV head keep."""

import torch
from torch import Tensor

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.plugins.reference import Vote


def vote(
    window: Tensor,
    key: Tensor,
    layer: LayerGeometry,
    geometry: CacheGeometry,
    scaling: float,
    softcap: float | None = None,
    one_set: bool = False,
) -> Tensor:
    """Score of every eligible position, float64 [Hkv, n].

    window: post-RoPE queries of the last L_obs prompt tokens [H, W, D]; key [Hkv, L, D].
    one_set: all heads are one group, with a key each; the scores are [1, n].
    """
    options = Vote(geometry.vote.pool_kernel, scaling, softcap or 0.0, **geometry.vote.options)
    scores = options.scores(window, key, eligible(layer, key.shape[1]))
    if not one_set:
        return scores
    combine = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax}[geometry.vote.group]
    return combine(scores, dim=0, keepdim=True)


def is_whole(layer: LayerGeometry, length: int) -> bool:
    """Whether the cache slots of a layer hold a prompt of so many tokens."""
    return length <= layer.L_sink + layer.L_recent + layer.K


def eligible(layer: LayerGeometry, length: int) -> range:
    """The positions of a prompt that the vote may keep; none of a prompt that is held whole."""
    stop = layer.L_sink if is_whole(layer, length) else length - layer.L_recent
    return range(layer.L_sink, stop)


def keep(scores: Tensor, layer: LayerGeometry) -> Tensor:
    """Positions of the K best eligible positions, ascending int64 [Hkv, K], -1 where unused."""
    ranked = torch.sort(scores, dim=-1, descending=True, stable=True)
    order = ranked.indices[:, : layer.K]
    kept = torch.full((scores.shape[0], layer.K), -1)
    kept[:, : order.shape[1]] = order.sort(-1).values + layer.L_sink
    return kept


def gap(scores: Tensor, budget: int) -> Tensor:
    """Distance of the last kept score from the first dropped one, as a share of the kept [Hkv].

    Infinite where nothing is dropped. Where it is near zero, rounding may decide.
    """
    if budget == 0 or scores.shape[1] <= budget:
        return torch.full(scores.shape[:1], torch.inf, dtype=torch.float64)
    ranked = scores.sort(-1, descending=True).values
    return 1 - ranked[:, budget] / ranked[:, budget - 1]
