"""Gives the layer for multi-token prediction (MTP) its cache: a ring, an exact sliding window.

The layer's first token is at position 1, beside the hidden states of position 0. So a token's slot
is that of the position before: (position - 1) mod R.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.graph_options import GraphOptions
from snapexport.graphs.functions.rings import RING_FILL, RING_SLOT
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.method import GraphSurgery, MethodSurgery, Recipe, Size
from snapexport.graphs.passes.base import (
    Pass,
    SurgeryError,
    call,
    cut,
    fresh,
    graph_input,
    int64s,
    node,
)
from snapexport.graphs.passes.cache import Place, attend_with_cache, cache_like
from snapexport.graphs.passes.storage import States, storage_of
from snapexport.methods.mtp.spec import GRAPH, PREFILL_GRAPH, ring_slots


@dataclass(frozen=True)
class DraftRing:
    """A step of every batch slot: writes its token's row, and attends to the last `slots` rows."""

    slots: int
    options: GraphOptions

    def apply(self, graph: gs.Graph) -> None:
        position_ids = graph_input(graph, names.POSITION_IDS)
        before = gs.Variable(fresh(graph, "before"), np.int64, position_ids.shape)
        node(graph, "Sub", [position_ids, int64s(graph, 1)], [before])
        # Nothing is kept of a prompt, so its length changes nothing.
        no_prompt = int64s(graph, *([0] * position_ids.shape[0]))
        place = Place(gs.Variable(fresh(graph, "slot")), gs.Variable(fresh(graph, "valid_length")))
        ring = {"L_sink": 0, "L_recent": self.slots, "K": 0}
        call(graph, RING_SLOT, [before, no_prompt], list(place), **ring)
        layer, marker = _marker(graph)
        attend_with_cache(
            graph, layer, marker, self.slots, place, appends=False, options=self.options
        )


@dataclass(frozen=True)
class FilledRing:
    """Keeps of a chunk's trace what fills the ring: attention, experts and head are removed.

    The rows of the cache do not depend on each other, since there is only one layer.
    """

    slots: int
    options: GraphOptions

    def apply(self, graph: gs.Graph) -> None:
        layer, marker = _marker(graph)
        (query, key, value, *_), _ = cut(graph, marker)
        storage = storage_of(self.options.cache_dtype)
        _, *rows = storage.held(graph, layer, States(query, key, value))
        chunk_length = gs.Variable(names.CHUNK_LENGTH, np.int64, (1,))
        lengths = [graph_input(graph, names.PAST_LENGTH), chunk_length]
        graph.inputs.append(chunk_length)
        graph.outputs.clear()
        of_cache = (names.past_key(layer), names.past_value(layer))
        for states, name in zip(rows, of_cache, strict=True):
            past = cache_like(states, name, self.slots)
            present = cache_like(states, names.present_of(name), self.slots)
            call(graph, RING_FILL, [past, states, *lengths], [present], L_recent=self.slots)
            graph.inputs.append(past)
            graph.outputs.append(present)
        graph.cleanup(remove_unused_graph_inputs=False)


def _marker(graph: gs.Graph) -> tuple[int, gs.Node]:
    """The index of the layer, and its attention."""
    found = [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, ATTENTION)]
    if len(found) != 1:
        raise SurgeryError(f"a layer for multi-token prediction has {len(found)} attentions")
    return int(found[0].attrs["layer"]), found[0]


def _draft(recipe: Recipe, size: Size) -> Sequence[Pass]:
    return (DraftRing(ring_slots(recipe.geometry), recipe.options),)


def _fill(recipe: Recipe, size: Size) -> Sequence[Pass]:
    return (FilledRing(ring_slots(recipe.geometry), recipe.options),)


class MtpSurgery(MethodSurgery):
    """The layer's graphs: a step that drafts, and a chunk that fills its ring."""

    kinds: ClassVar = {
        GRAPH: GraphSurgery(_draft),
        PREFILL_GRAPH: GraphSurgery(_fill, absorbs=True),
    }


SURGERY = MtpSurgery()
