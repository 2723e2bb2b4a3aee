"""Decode: writes each batch slot's tokens to their cache slots, in a cache of fixed size."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.slots import LayerGeometry
from snapexport.errors import UserError
from snapexport.graphs.functions.rings import RING_SLOT
from snapexport.graphs.markers import ATTENTION, CACHE_ATTENTION, CACHE_DOMAIN, TRACE_DOMAIN
from snapexport.graphs.passes.base import (
    SurgeryError,
    call,
    computed_range,
    fresh,
    graph_input,
    has_cache,
    has_sink,
    int64s,
    markers,
    node,
)
from snapexport.graphs.passes.cache import Place, attend_to_cache_of, attend_with_cache
from snapexport.graphs.passes.chunks import chunk_mask, chunk_of, column_of
from snapexport.graphs.passes.latents import own_rows

Places = Callable[[gs.Graph, CacheGeometry], dict[LayerGeometry, Place]]


@dataclass(frozen=True)
class DecodeCache:
    """Caches [B,Hkv,S,D] in and out: the sinks and ring of SnapStream, or the full length.

    places: of a compressed cache, where these do not follow from the position; with masks.
    """

    geometry: CacheGeometry
    options: GraphOptions
    places: Places | None = None

    def apply(self, graph: gs.Graph) -> None:
        compresses, shapes = self.geometry.compresses, self.geometry.shapes
        sources = self.geometry.slots.read_by
        places, masks = self._places(graph), dict[int, gs.Tensor]()
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            if (source := sources[layer]) != layer:
                attend_to_cache_of(graph, source, marker, self._cache_options)
                continue
            shape = shapes[layer]
            place, chunk = places[shape], chunk_of(marker, shape.cache_slots)
            if compresses:
                _require_ring(layer, marker, shape, self.geometry.L_max)
            elif chunk:
                if chunk not in masks:
                    masks[chunk] = _full_mask(graph, chunk, shape.cache_slots)
                place = Place(place.slot, masks[chunk])
            attend_with_cache(
                graph,
                layer,
                marker,
                shape.cache_slots,
                place,
                appends=not compresses and not chunk,
                options=self._cache_options,
            )

    @property
    def _cache_options(self) -> GraphOptions | None:
        """The form of the caches: with a mask a step reads all slots."""
        if not self.geometry.compresses:
            return None
        if self.places:
            return replace(self.options, decode_attention="all")
        return self.options

    def _places(self, graph: gs.Graph) -> dict[LayerGeometry, Place]:
        if not self.geometry.compresses:
            return self._full(graph)
        if self.places:
            return self.places(graph, self.geometry)
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


def _require_ring(layer: int, marker: gs.Node, shape: LayerGeometry, L_max: int) -> None:
    """Refuse a layer with a window or chunks whose ring is not of that size: decode has no mask."""
    window, chunk = int(marker.attrs["window"]), int(marker.attrs.get("chunk", 0))
    size = window or min(chunk, L_max)
    found = (shape.L_sink, shape.L_recent, shape.K, shape.chunk)
    if size and found != (0, size, 0, chunk):
        kind = "window" if window else "chunk"
        raise SurgeryError(f"layer {layer} has a {kind} of {size} positions, its cache is {shape}")


def _full_mask(graph: gs.Graph, chunk: int, slots: int) -> gs.Variable:
    """The mask of a full cache, bool [B,1,q,T]."""
    position_ids = graph_input(graph, names.POSITION_IDS)
    (batch, tokens), columns = position_ids.shape, computed_range(graph, 0, slots)
    shape = (batch, 1, tokens, slots)
    return chunk_mask(graph, column_of(graph, position_ids), columns, chunk, shape)


def _ring_slot(graph: gs.Graph, inputs: list[gs.Tensor], layer: LayerGeometry) -> Place:
    if layer.chunk:
        return _chunk_slot(graph, inputs[0], layer)
    place = Place(gs.Variable(fresh(graph, "slot")), gs.Variable(fresh(graph, "valid_length")))
    attributes = {"L_sink": layer.L_sink, "L_recent": layer.L_recent, "K": layer.K}
    call(graph, RING_SLOT, inputs, list(place), **attributes)
    return place


def _chunk_slot(graph: gs.Graph, position_ids: gs.Tensor, layer: LayerGeometry) -> Place:
    """The slot of a position is its offset in its chunk, and valid slots are those up to it."""
    (position,) = node(graph, "Squeeze", [position_ids, int64s(graph, 1)])
    (slot,) = node(graph, "Mod", [position, int64s(graph, layer.chunk)])
    (valid,) = node(graph, "Add", [slot, int64s(graph, 1)])
    if layer.L_recent < layer.chunk:
        (slot,) = node(graph, "Mod", [slot, int64s(graph, layer.L_recent)])
        (valid,) = node(graph, "Min", [valid, int64s(graph, layer.L_recent)])
    return Place(slot, valid)


@dataclass(frozen=True)
class DecodeQueries:
    """Adds query.{l} [B,H,1,D] of each layer with a cache to a decode step's outputs.

    For measurements of attention, not used in serving. Runs after DecodeCache. The queries are
    after RoPE and multiplied by attention's scale: query . key is the score that the softmax takes.
    """

    def apply(self, graph: gs.Graph) -> None:
        for layer, marker in markers(graph, CACHE_DOMAIN, CACHE_ATTENTION):
            if not has_cache(graph, layer):
                continue
            if marker.attrs["softcap"] or has_sink(marker):
                raise UserError(
                    "the hit rate is not supported for models with soft-capped attention or "
                    "learned sinks",
                    "leave the hit rate out for this model",
                )
            query = marker.inputs[0]
            scale = gs.Constant(fresh(graph, "scale"), np.array(marker.attrs["scale"], np.float32))
            (factor,) = node(graph, "CastLike", [scale, query])
            output = gs.Variable(names.query(layer), query.dtype, query.shape)
            node(graph, "Mul", [query, factor], [output])
            graph.outputs.append(output)
