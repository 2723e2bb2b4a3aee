"""Head groups: KV heads of a layer that share a cache, and have the same number of cache slots.

A static graph has one size for each cache. So heads with different budgets need several caches: a
layer whose heads are in two groups has two. Knows no cache geometry and no graph.
"""

from collections.abc import Iterator
from typing import NamedTuple

from snapexport.errors import UserError

HeadGroups = tuple[tuple[tuple[int, ...], ...], ...]
"""The KV heads of each group of each layer, ascending. Empty: every layer has one cache."""

MOST_GROUPS = 8
"""Groups of a layer: each costs a decode step an attention of its own."""


class CacheHeads(NamedTuple):
    """The KV heads of one cache. cache: its number in the names of tensors, that of its layer.

    With head groups it is the index in the order of layers and their groups. layer: of the model.
    heads: ascending; None: all heads of the layer.
    """

    cache: int
    layer: int
    heads: tuple[int, ...] | None

    def count(self, kv_heads: int) -> int:
        """Its KV heads, of a layer that has so many."""
        return kv_heads if self.heads is None else len(self.heads)


def caches_of(groups: HeadGroups) -> Iterator[CacheHeads]:
    """Every cache, in order."""
    index = 0
    for layer, of_layer in enumerate(groups):
        for heads in of_layer:
            yield CacheHeads(index, layer, heads if len(of_layer) > 1 else None)
            index += 1


def require_groups(groups: HeadGroups, num_layers: int) -> None:
    """Raise UserError unless the groups of each layer hold each of the same heads once."""
    if groups and len(groups) != num_layers:
        raise UserError(
            f"there are head groups of {len(groups)} layers, the model has {num_layers}",
            "make them with --head-budget",
        )
    kv_heads = sum(map(len, groups[0])) if groups else 0
    for layer, of_layer in enumerate(groups):
        heads = [head for group in of_layer for head in group]
        ordered = all(list(group) == sorted(group) for group in of_layer)
        if not all(of_layer) or not ordered or sorted(heads) != list(range(kv_heads)):
            raise UserError(
                f"the head groups of layer {layer} do not hold each of {kv_heads} KV heads once",
                "make them with --head-budget",
            )
        if len(of_layer) > MOST_GROUPS:
            raise UserError(
                f"layer {layer} has {len(of_layer)} head groups, more than {MOST_GROUPS}",
                f"use --head-groups {MOST_GROUPS} or less",
            )
