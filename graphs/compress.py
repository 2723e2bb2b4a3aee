"""Makes compress.onnx: from a prompt's full-length cache to its compressed one.

Not traced: it has no weights, and takes its shapes from the prefill graph.
"""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.graphs.compression import PromptStates, Scores, compress_layer, sharing
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import markers
from snapexport.graphs.passes.cache import cache_like
from snapexport.graphs.passes.storage import storage_of


def compress_graph(prefill: gs.Graph, geometry: CacheGeometry, options: GraphOptions) -> gs.Graph:
    """Compression of every layer of a traced (not yet rewritten) prefill graph."""
    storage = storage_of(options.cache_dtype)
    prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    graph = gs.Graph(name="compress", opset=prefill.opset, inputs=[prompt_length])
    for layer, marker in markers(prefill, TRACE_DOMAIN, ATTENTION):
        ranks = sharing(prefill, latent=bool(marker.attrs["latent"]))
        states = _inputs(layer, marker, geometry, prompt_length, ranks)
        graph.inputs.extend([states.key, states.value, states.query_window])
        compress_layer(graph, geometry, layer, Scores.of(marker), states, storage)
    return graph


def _inputs(
    layer: int, marker: gs.Node, geometry: CacheGeometry, prompt_length: gs.Tensor, ranks: int
) -> PromptStates:
    query, key, value, *_ = marker.inputs
    batch, heads, _, head_dim = query.shape
    window_shape = (batch, heads, geometry.L_obs, head_dim)
    return PromptStates(
        query_window=gs.Variable(names.query_window(layer), query.dtype, window_shape),
        key=cache_like(key, names.past_key(layer), geometry.L_max),
        value=cache_like(value, names.past_value(layer), geometry.L_max),
        prompt_length=prompt_length,
        latent=bool(marker.attrs["latent"]),
        sharing=ranks,
    )
