"""The published votes and budgets, written anew from their formulas, in float64.

| what | where it is published |
|---|---|
| snapkv | FasterDecoding/SnapKV, snapkv_utils.py, SnapKVCluster.update_kv |
| kv_head groups, pyramid | Zefan-Cai/KVCache-Factory, pyramidkv_utils.py, SnapKVCluster and \
PyramidKVCluster |
| sum of squares | IsaacRe/vllm-kvcompress, flash_attn.py, _naive_kvc_masked_attention, and \
kvcompress/metrics.py, aggregate_prefill |
| softmax over the eligible positions | SnapStream, Eq. 3 (no code published) |

`originals` holds all but the last against that code, running. Knows nothing of snapexport.
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

BETA = 20
"""PyramidKV's default."""


@dataclass(frozen=True)
class Vote:
    """One definition on one prompt. Option names are snapexport's.

    length, window, K: tokens. order: of pooling and group reduction. window_pools: the window's own
    columns are dropped after pooling, not before. heads: so many of the query heads, evenly chosen.
    """

    family: str
    length: int
    window: int
    kernel: int
    K: int
    softmax: str = "causal"
    vote: str = "sum"
    pool: str = "avg"
    group: str = "none"
    order: str = "pool-first"
    window_pools: bool = False
    heads: int = 4

    @property
    def name(self) -> str:
        """What the kept positions are filed under."""
        return "_".join(str(value) for value in asdict(self).values())

    @property
    def eligible(self) -> int:
        """Positions that are voted on: all before the window."""
        return self.length - self.window


def scores(vote: Vote, query: Tensor, key: Tensor) -> Tensor:
    """Float64 [heads, eligible]: KV heads, or query heads where there is no group.

    query [H, L, D] and key [Hkv, L, D] after RoPE.
    """
    window = voters(vote, query)[:, -vote.window :].double()
    keys = repeated(key[:, : vote.length].double(), vote.heads)
    per_head = _votes(vote, _attention(vote, window, keys))
    if vote.order == "pool-first":
        result = _grouped(vote, _pooled(vote, per_head), len(key))
    else:
        result = _pooled(vote, _grouped(vote, per_head, len(key)))
    return result[:, : vote.eligible]


def voters(vote: Vote, query: Tensor) -> Tensor:
    """The prompt's queries [heads, length, D] of all that there are [H, L, D]."""
    return query[:: len(query) // vote.heads, : vote.length]


def repeated(key: Tensor, heads: int) -> Tensor:
    """A KV head for every query head."""
    return key.repeat_interleave(heads // len(key), 0)


def keep(vote: Vote, ranked: Tensor) -> Tensor:
    """Positions [heads, K], best first. A prompt that the capacity holds is kept whole."""
    return ranked.topk(min(vote.K, vote.eligible), dim=-1).indices


def gap(ranked: Tensor, K: int) -> float:
    """Between the last kept and the first dropped score, relative: at 0 anything may be kept."""
    if ranked.shape[-1] <= K:
        return 1.0
    ordered = ranked.sort(-1, descending=True).values
    return float((1 - ordered[:, K] / ordered[:, K - 1]).min())


def pyramid(layers: int, K: int, window: int, length: int) -> list[int]:
    """Eligible positions that each layer keeps, of a prompt that K + window tokens do not hold."""
    if length < 2 * K:
        return [K] * layers
    least = K // BETA
    most = 2 * K - least
    if most >= length - window:
        most = length - window
        least = 2 * K - most
    step = (most - least) // (layers - 1)
    return [most - layer * step for layer in range(layers)]


def _attention(vote: Vote, window: Tensor, key: Tensor) -> Tensor:
    """[H, W, columns]: what each query gives to each eligible position (and window key)."""
    products = window @ key.mT / math.sqrt(key.shape[-1])
    if vote.softmax == "candidates":
        return products[..., : vote.eligible].softmax(-1)
    rows = torch.arange(vote.eligible, vote.length)[:, None]
    future = torch.arange(vote.length) > rows
    shares = products.masked_fill(future, -torch.inf).softmax(-1)
    return shares if vote.window_pools else shares[..., : vote.eligible]


def _votes(vote: Vote, shares: Tensor) -> Tensor:
    return (shares.square() if vote.vote == "sum-squares" else shares).sum(-2)


def _pooled(vote: Vote, votes: Tensor) -> Tensor:
    pool = functional.avg_pool1d if vote.pool == "avg" else functional.max_pool1d
    pooled: Tensor = pool(votes, vote.kernel, stride=1, padding=vote.kernel // 2)
    return pooled


def _grouped(vote: Vote, votes: Tensor, kv_heads: int) -> Tensor:
    if vote.group == "none":
        return votes
    grouped = votes.reshape(kv_heads, -1, votes.shape[-1])
    reduced: dict[str, Tensor] = {
        "mean": grouped.mean(1),
        "max": grouped.amax(1),
        "sum": grouped.sum(1),
    }
    return reduced[vote.group]
