"""Chunked prefill: appends each chunk to a full-length cache."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import graph_input, int64s, markers, node
from snapexport.graphs.passes.cache import Place, attend_with_cache


@dataclass(frozen=True)
class PrefillCache:
    """Caches [1,Hkv,T,D] in and out; the chunk is written at past_length."""

    L_max: int

    def apply(self, graph: gs.Graph) -> None:
        past_length = graph_input(graph, names.PAST_LENGTH)
        chunk = graph_input(graph, names.INPUT_IDS).shape[1]
        (valid_length,) = node(graph, "Add", [past_length, int64s(graph, chunk)])
        place = Place(past_length, valid_length)
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            attend_with_cache(graph, layer, marker, self.L_max, place, appends=True)
