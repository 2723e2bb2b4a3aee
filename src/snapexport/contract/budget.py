"""How a budget of top-k slots is shared among the layers that vote."""

PYRAMID_BETA = 20
"""PyramidKV's beta: the last layer keeps about a twentieth of the mean (arXiv:2406.02069)."""

BUDGETS = ("uniform", "pyramid")


def topk_per_layer(budget: str, K: int, layers: int, room: int) -> tuple[int, ...]:
    """K of each voting layer; their mean is K.

    room: the most eligible positions that a prompt can have.
    """
    return pyramid(K, layers, room) if budget == "pyramid" else (K,) * layers


def pyramid(K: int, layers: int, room: int) -> tuple[int, ...]:
    """PyramidKV: fewer for each layer in equal steps, from 2K - K // 20 to about K // 20.

    The steps are not rounded down to whole slots, as KVCache-Factory has them: the sum would be up
    to 15 % above K * layers, and a budget is a promise. Here it is K * layers. KVCache-Factory's
    room is that of each prompt; in a static graph it is the longest prompt's.
    """
    if layers == 1 or room <= K:
        return (K,) * layers
    least = K // PYRAMID_BETA
    most = 2 * K - least
    if most > room:
        most, least = room, 2 * K - room
    step = (most - least) / (layers - 1)
    return tuple(round(most - layer * step) for layer in range(layers))
