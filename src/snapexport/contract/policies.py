"""Presets of the policies, and how a budget of cache slots is shared."""

from collections.abc import Mapping

from snapexport.contract.geometry import Policy
from snapexport.contract.vote import DEFAULT_POOL_KERNEL

PRESETS: Mapping[Policy, Mapping[str, int | str]] = {
    "snapstream": {},
    # StreamingLLM (arXiv:2309.17453): only sinks and ring.
    "streaming": {"K": 0},
    # SAGE-KV (arXiv:2503.08879): the last token decides, position by position.
    "sage": {"L_obs": 1, "pool_kernel": 1},
    # SnapKV (arXiv:2404.14469): only the newest are protected, and attention goes to all keys.
    "snapkv": {"L_sink": 0, "softmax": "causal"},
    "full": {},
}

PRESET_DEFAULTS: Mapping[Policy, Mapping[str, int | str]] = {
    # One query votes: other options would only weigh the heads of a group otherwise.
    "sage": {"softmax": "candidates", "vote": "sum"},
    # SnapKV's own code has a pool kernel of 5 or 7.
    "snapkv": {"pool_kernel": 7, "vote": "sum"},
}
"""A preset's defaults, from its paper."""
VOTE_FIELDS = ("vote", "pool", "softmax", "group", "budget", "vote_queries")


LEAST_RING = 18
"""A default ring is not shorter: with 14 slots running text loses more than by only a ring
(docs/quality.md)."""

PYRAMID_BETA = 20
"""PyramidKV's beta: the last layer keeps about K / 20 positions (arXiv:2406.02069)."""

BUDGETS = ("uniform", "pyramid")
"""Rules that share K among layers: equally, or falling."""


def default_ring(free: int) -> int:
    """L_recent where neither it nor K is given: half of the `free` cache slots, which sinks leave.

    At least 18, of which the vote still gets a third: running text needs its recent past.
    """
    return max(free - free // 2, min(LEAST_RING, 2 * free // 3))


def short_ring(L_max: int) -> int:
    """The longest ring by default, of votes that need no recent past to know what is asked for."""
    return max(128, L_max // 50)


def default_pool_kernel(K: int) -> int:
    """P where none is given: 31, or about two thirds of K where that is less.

    All positions within P // 2 of a single hit get about the same vote. If K is smaller than P,
    they take all of it; of equal votes the lowest positions win, and may leave out the hit itself.
    """
    return min(DEFAULT_POOL_KERNEL, 2 * K // 3 | 1)


def topk_per_layer(budget: str, K: int, layers: int, room: int) -> tuple[int, ...]:
    """K of each voting layer, of mean K. room: the most eligible positions a prompt can have."""
    return pyramid(K, layers, room) if budget == "pyramid" else (K,) * layers


def pyramid(K: int, layers: int, room: int) -> tuple[int, ...]:
    """PyramidKV: K falls layer by layer in equal steps, from 2K - K // 20 to about K // 20.

    Differs from KVCache-Factory twice. It rounds each step down, so that the sum exceeds the budget
    K * layers by up to 15 %; here the sum is K * layers. And its room depends on each prompt; a
    static graph needs that of the longest prompt.
    """
    if layers == 1 or room <= K:
        return (K,) * layers
    least = K // PYRAMID_BETA
    most = 2 * K - least
    if most > room:
        most, least = room, 2 * K - room
    step = (most - least) / (layers - 1)
    return tuple(round(most - layer * step) for layer in range(layers))
