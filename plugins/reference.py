"""What the kernels are held against: the definitions of graphs/functions, in float64, with torch.

Runs where its inputs are, a CPU or a GPU. Written from the definitions, not from the kernels.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from snapexport.plugins.binding import GatherProblem, SelectProblem


def eligible(p: "SelectProblem", length: int) -> range:
    """Positions that neither sinks nor ring hold."""
    return range(p.sink, max(p.sink, length - p.recent))


def scores(p: "SelectProblem", query: "Tensor", key: "Tensor", length: int) -> "Tensor":
    """What the eligible positions are ranked by, float64 [Hkv, n]. query [H,W,D], key [Hkv,T,D]."""
    import torch

    span = eligible(p, length)
    if not span:
        return key.new_zeros(p.kv_heads, 0, dtype=torch.float64)
    queries = query.double().reshape(p.kv_heads, -1, p.head_dim)
    products = queries @ key[:, :length].double().mT * p.scale
    if p.softcap:
        products = (products / p.softcap).tanh() * p.softcap
    products = products.reshape(p.kv_heads, p.group, p.window, length)
    if p.causal:
        seen = torch.ones(p.window, length, dtype=torch.bool, device=key.device)
        products = products.masked_fill(~seen.tril(length - p.window), -torch.inf)
        share = products.softmax(-1)[..., span.start : span.stop]
    else:
        share = products[..., span.start : span.stop].softmax(-1)
    votes = (share.square() if p.squares else share).sum(2)
    pooled = _pool(votes, p.pool_kernel, bool(p.pool_max))
    return pooled.amax(1) if p.group_max else pooled.mean(1)


def _pool(votes: "Tensor", width: int, maximum: bool) -> "Tensor":
    """Each vote with its neighbours, zeros beyond the eligible: [Hkv,G,n] -> [Hkv,G,n]."""
    import torch

    before = (width - 1) // 2
    padded = torch.nn.functional.pad(votes, (before, width - 1 - before))
    if maximum:
        return torch.nn.functional.max_pool1d(padded, width, 1)
    return torch.nn.functional.avg_pool1d(padded, width, 1)


def complaint(
    p: "SelectProblem", scores: "Tensor", positions: "Tensor", length: int, tolerance: float
) -> str:
    """What is wrong with the kept positions int64 [Hkv,K], or nothing.

    They must be right but for votes that are within `tolerance` (a share) of the last kept one.
    """
    span = eligible(p, length)
    count = min(len(span), p.K)
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

    slots = [-1] * (p.sink + p.recent)
    for position in range(length):
        ring = p.sink + (position - p.sink) % p.recent
        slots[position if position < p.sink else ring] = position
    window = torch.tensor(slots, device=cache.device).expand(p.kv_heads, -1)
    sources = torch.cat([window, positions], dim=1)
    rows = cache.gather(1, sources.clamp(min=0)[..., None].expand(-1, -1, p.head_dim))
    return rows.where((sources >= 0)[..., None], 0)
