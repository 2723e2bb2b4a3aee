"""Shares of cache slots: of a budget between the ring and the vote, and of K among layers."""

from snapexport.contract.vote import DEFAULT_POOL_KERNEL

LEAST_RING = 18
"""A default ring is no shorter: with 14 slots running text loses more than by a ring alone
(docs/quality.md)."""

PYRAMID_BETA = 20
"""PyramidKV's beta: the last layer keeps about K / 20 positions (arXiv:2406.02069)."""

BUDGETS = ("uniform", "pyramid", "heads")
"""Rules that share K: equally, among layers, or among the KV heads of each layer."""


def default_ring(free: int) -> int:
    """L_recent where neither it nor K is given: half of the `free` cache slots, which sinks leave.

    At least 18, of which the vote still gets a third: running text needs its recent past.
    """
    return max(free - free // 2, min(LEAST_RING, 2 * free // 3))


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
