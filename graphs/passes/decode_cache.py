"""Decode: writes each batch slot's tokens to their cache slots, in a cache of fixed size."""

from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.layer_geometry import LayerGeometry
from snapexport.graphs.functions.ring_slot import RING_SLOT
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import (
    SurgeryError,
    call,
    fresh,
    graph_input,
    int64s,
    markers,
    node,
)
from snapexport.graphs.passes.batch_parallel import own_rows
from snapexport.graphs.passes.cache import Place, attend_to_cache_of, attend_with_cache
from snapexport.graphs.passes.slot_positions import slot_positions_places


@dataclass(frozen=True)
class DecodeCache:
    """Caches [B,Hkv,S,D] in and out: the sinks and ring of SnapStream, or the full length."""

    geometry: CacheGeometry
    options: GraphOptions

    def apply(self, graph: gs.Graph) -> None:
        compresses, shapes = self.geometry.compresses, self.geometry.shapes
        places = self._places(graph)
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            if (source := self.geometry.slots.source(layer)) != layer:
                attend_to_cache_of(graph, source, marker, self._cache_options)
                continue
            shape = shapes[layer]
            if compresses:
                _require_ring(layer, marker, shape)
            attend_with_cache(
                graph,
                layer,
                marker,
                shape.cache_slots,
                places[shape],
                appends=not compresses,
                options=self._cache_options,
            )

    @property
    def _cache_options(self) -> GraphOptions | None:
        """The form of the caches: a step of several tokens has a mask, and reads all slots."""
        if not self.geometry.compresses:
            return None
        if self.geometry.steps.several:
            return replace(self.options, decode_attention="all")
        return self.options

    def _places(self, graph: gs.Graph) -> dict[LayerGeometry, Place]:
        if not self.geometry.compresses:
            return self._full(graph)
        if self.geometry.steps.several:
            return slot_positions_places(graph, self.geometry.layers)
        return self._ring(graph)

    def _full(self, graph: gs.Graph) -> dict[LayerGeometry, Place]:
        """A full cache: the cache slot is the position."""
        position_ids = own_rows(graph, graph_input(graph, names.POSITION_IDS))
        tokens = position_ids.shape[1]
        first: list[gs.Tensor] = [position_ids]
        if tokens > 1:
            ends = [int64s(graph, n) for n in (0, 1, 1)]
            first = node(graph, "Slice", [position_ids, *ends])
        (slot,) = node(graph, "Squeeze", [*first, int64s(graph, 1)])
        (valid_length,) = node(graph, "Add", [slot, int64s(graph, tokens)])
        return dict.fromkeys(self.geometry.layers, Place(slot, valid_length))

    def _ring(self, graph: gs.Graph) -> dict[LayerGeometry, Place]:
        """A compressed cache: one place for each distinct layer geometry."""
        position_ids = graph_input(graph, names.POSITION_IDS)
        prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (position_ids.shape[0],))
        graph.inputs.append(prompt_length)
        inputs = [own_rows(graph, one) for one in (position_ids, prompt_length)]
        return {
            layer: _ring_slot(graph, inputs, layer) for layer in dict.fromkeys(self.geometry.layers)
        }


def _require_ring(layer: int, marker: gs.Node, shape: LayerGeometry) -> None:
    """Refuse a sliding-window layer whose cache is not a ring of that size: decode has no mask."""
    window = int(marker.attrs["window"])
    if window and (shape.L_sink, shape.L_recent, shape.K) != (0, window, 0):
        raise SurgeryError(
            f"layer {layer} has a window of {window} positions, its cache is {shape}"
        )


def _ring_slot(graph: gs.Graph, inputs: list[gs.Tensor], layer: LayerGeometry) -> Place:
    place = Place(gs.Variable(fresh(graph, "slot")), gs.Variable(fresh(graph, "valid_length")))
    attributes = {"L_sink": layer.L_sink, "L_recent": layer.L_recent, "K": layer.K}
    call(graph, RING_SLOT, inputs, list(place), **attributes)
    return place
