"""Outputs the observation window: the queries of the prompt's last tokens, which vote."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import call, graph_input, markers


@dataclass(frozen=True)
class QueryWindows:
    """Adds query_window.{l} [1,H,W,D] to a chunk's outputs. Runs after PrefillCache."""

    L_obs: int

    def apply(self, graph: gs.Graph) -> None:
        chunk_length = graph_input(graph, names.CHUNK_LENGTH)
        for layer, marker in markers(graph, CACHE_DOMAIN, CACHE_ATTENTION):
            query = marker.inputs[0]
            graph.outputs.append(query_window(graph, layer, query, chunk_length, self.L_obs))


def query_window(
    graph: gs.Graph, layer: int, query: gs.Tensor, valid: gs.Tensor, L_obs: int
) -> gs.Variable:
    """The last W of the `valid` rows of query [1,H,C,D]: [1,H,W,D]."""
    batch, heads, _, head_dim = query.shape
    shape = (batch, heads, L_obs, head_dim)
    window = gs.Variable(names.query_window(layer), query.dtype, shape)
    call(graph, "QueryWindow", [query, valid], [window], L_obs=[L_obs])
    return window
