"""Outputs the queries of decoded tokens, for measurements of attention. Not used in serving."""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.errors import UserError
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import fresh, has_cache, has_sink, markers, node


@dataclass(frozen=True)
class DecodeQueries:
    """Adds query.{l} [B,H,1,D] of each layer with a cache to a decode step's outputs.

    Runs after DecodeCache.

    The queries are after RoPE and multiplied by attention's scale: query . key is the score that
    the softmax takes.
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
