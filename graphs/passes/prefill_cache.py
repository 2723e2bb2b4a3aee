"""Chunked prefill: appends chunks to a full-length cache, and outputs the observation window."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.slots import Slots
from snapexport.graphs.functions.query_window import QUERY_WINDOW
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import call, fresh, graph_input, int64s, markers, node
from snapexport.graphs.passes.cache import Place, attend_to_cache_of, attend_with_cache
from snapexport.graphs.passes.chunks import (
    Span,
    attend_in_chunks,
    chunk_of,
    write_before_chunks,
)
from snapexport.graphs.passes.latents import EXPANDED, absorbed


@dataclass(frozen=True)
class PrefillCache:
    """Adds caches [1,Hkv,N,D] as inputs and outputs; the chunk is written at past_length.

    slots: say which layers have a cache. positions: N. options: the form of the cache.
    """

    slots: Slots
    positions: int
    options: GraphOptions

    def apply(self, graph: gs.Graph) -> None:
        past_length = graph_input(graph, names.PAST_LENGTH)
        chunk = graph_input(graph, names.INPUT_IDS).shape[1]
        (valid_length,) = node(graph, "Add", [past_length, int64s(graph, chunk)])
        place = Place(past_length, valid_length)
        spans: dict[int, Span] = {}
        read: dict[int, list[gs.Tensor]] = {}
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            source, size = self.slots.source(layer), chunk_of(marker, self.positions)
            if size and size not in spans:
                spans[size] = Span.of(graph, past_length, chunk, self.positions, size)
            if size and source == layer:
                read[layer] = write_before_chunks(graph, layer, marker, self.positions, spans[size])
            if size:
                attend_in_chunks(graph, marker, read[source])
            else:
                self.attend(graph, layer, marker, place)

    def attend(self, graph: gs.Graph, layer: int, marker: gs.Node, place: Place) -> None:
        """Replace a traced attention to all positions or to a window."""
        source = self.slots.source(layer)
        if source != layer:
            attend_to_cache_of(graph, source, marker, self.options)
        else:
            size, options = self.positions, self.options
            attend_with_cache(graph, layer, marker, size, place, appends=True, options=options)


def query_window(
    graph: gs.Graph,
    layer: int,
    marker: gs.Node,
    valid: gs.Tensor,
    L_obs: int,
    query: gs.Tensor | None = None,
) -> gs.Variable:
    """The queries [1,H,W,D] of the last W of a marker's `valid` rows, as they score cached keys.

    query: in place of the marker's.
    """
    query = marker.inputs[0] if query is None else query
    batch, heads, _, head_dim = query.shape
    window = gs.Variable(fresh(graph, "window"), query.dtype, (batch, heads, L_obs, head_dim))
    call(graph, QUERY_WINDOW, [query, valid], [window], L_obs=[L_obs])
    if marker.attrs["latent"] == EXPANDED:
        window = absorbed(graph, window, marker.inputs[-2])
    window.name = names.query_window(layer)
    return window
