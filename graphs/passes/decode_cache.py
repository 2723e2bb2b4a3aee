"""Decode: each token is written to its slot of a cache that does not grow."""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry, LayerGeometry
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import call, fresh, graph_input, int64s, markers, node
from snapexport.graphs.passes.cache import attend_with_cache


@dataclass(frozen=True)
class DecodeCache:
    """Caches [B,Hkv,S,D] in and out: the sinks and ring of SnapStream, or the full length."""

    geometry: CacheGeometry

    def apply(self, graph: gs.Graph) -> None:
        where = self._full(graph) if self.geometry.policy == "full" else self._ring(graph)
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            place = self.geometry.layers[layer]
            appends = self.geometry.policy == "full"
            attend_with_cache(graph, layer, marker, place.slots, where[place], appends)

    def _full(self, graph: gs.Graph) -> dict[LayerGeometry, list[gs.Tensor]]:
        """Slot and valid length of a cache that holds every position."""
        position_ids = graph_input(graph, names.POSITION_IDS)
        (slot,) = node(graph, "Squeeze", [position_ids, int64s(graph, 1)])
        (valid_length,) = node(graph, "Add", [slot, int64s(graph, 1)])
        return {layer: [slot, valid_length] for layer in self.geometry.layers}

    def _ring(self, graph: gs.Graph) -> dict[LayerGeometry, list[gs.Tensor]]:
        """The same for sinks, ring and top-k, once for each geometry that occurs."""
        position_ids = graph_input(graph, names.POSITION_IDS)
        prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (position_ids.shape[0],))
        graph.inputs.append(prompt_length)
        inputs = [position_ids, prompt_length]
        return {
            place: call(graph, "RingSlot", inputs, _two(graph), **_attributes(place))
            for place in dict.fromkeys(self.geometry.layers)
        }


def _attributes(place: LayerGeometry) -> dict[str, int]:
    return {"L_sink": place.L_sink, "L_recent": place.L_recent, "K": place.K}


def _two(graph: gs.Graph) -> list[gs.Tensor]:
    return [gs.Variable(fresh(graph, "slot")), gs.Variable(fresh(graph, "valid_length"))]
