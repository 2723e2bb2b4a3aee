"""Splits the attention of a layer by its head groups: KV heads with a cache of their own.

Prefill attends to everything with all heads at once, and is not split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract.geometry import CacheGeometry
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.method import MethodSurgery, Recipe, Size
from snapexport.graphs.passes.base import Pass, cut, fresh, int64s, markers, node
from snapexport.graphs.passes.cache import of_heads, query_heads


@dataclass(frozen=True)
class HeadGroups:
    """Replaces each attention marker of a trace by one for each cache that the layer reads.

    Runs before the pass that adds the caches, which then finds a marker a cache.
    """

    geometry: CacheGeometry

    def apply(self, graph: gs.Graph) -> None:
        read = dict(self.geometry.slots.numbers())
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            groups = {number: cache.heads or () for number, cache in read[layer].items()}
            if len(groups) == 1:
                (marker.attrs["layer"],) = groups
            else:
                _split(graph, marker, groups)


def _split(graph: gs.Graph, marker: gs.Node, groups: dict[int, tuple[int, ...]]) -> None:
    """Replace a layer's marker. groups: by number, the KV heads of each cache that it reads."""
    attributes = dict(marker.attrs)
    inputs, (out,) = cut(graph, marker)
    query, key, value, *_ = inputs
    batch, heads, rows, _ = query.shape
    parts, order = list[gs.Tensor](), list[int]()
    for index, kv_heads in groups.items():
        own = query_heads(kv_heads, heads // key.shape[1])
        shape = (batch, rows, len(own), value.shape[3])
        part = gs.Variable(fresh(graph, "attended"), query.dtype, shape)
        states = _of_group(graph, inputs, kv_heads, own)
        of_cache = attributes | {"layer": index}
        parts += node(graph, ATTENTION, states, [part], domain=TRACE_DOMAIN, **of_cache)
        order += own
    joined = node(graph, "Concat", parts, axis=2)
    places = int64s(graph, *(order.index(head) for head in range(heads)))
    node(graph, "Gather", [*joined, places], [out], axis=2)


def _of_group(
    graph: gs.Graph, inputs: Sequence[gs.Tensor], kv_heads: Sequence[int], own: Sequence[int]
) -> list[gs.Tensor]:
    """A group's inputs: query, key, value, and the sinks [H] where heads have them."""
    query, key, value, *sinks = inputs
    states = [of_heads(graph, query, own)]
    states += [of_heads(graph, state, kv_heads) for state in (key, value)]
    return states + [of_heads(graph, sink, own, axis=0) for sink in sinks]


_OF_COMPRESSED = "decode", "verify", "extend"
"""Kinds of graphs that attend to compressed caches."""


class HeadBudgetSurgery(MethodSurgery):
    """Splits attention in the graphs that attend to compressed caches."""

    def before_caches(self, kind: str, recipe: Recipe, size: Size) -> Sequence[Pass]:
        return (HeadGroups(recipe.geometry),) if kind in _OF_COMPRESSED else ()


SURGERY = HeadBudgetSurgery()
