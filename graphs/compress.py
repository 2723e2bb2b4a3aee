"""Makes compress.onnx: from a prompt's full-length cache to its compressed one.

Not traced: it has no weights, and takes its shapes from the prefill graph.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.graphs.compression import (
    PromptStates,
    Scores,
    compress_layer,
    sharing,
)
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.method import voting
from snapexport.graphs.passes.base import graph_input, markers
from snapexport.graphs.passes.cache import cache_like
from snapexport.graphs.passes.storage import cast, storage_of
from snapexport.graphs.recipe import Recipe


def compress_graph(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    """Compression of every layer of a traced (not yet rewritten) prefill graph."""
    geometry, options = recipe.geometry, recipe.options
    storage = storage_of(options.cache_dtype)
    prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    graph = gs.Graph(name="compress", opset=prefill.opset, inputs=[prompt_length])
    votes = voting(recipe, graph, graph_input(prefill, names.INPUT_IDS).shape[1])
    for layer, marker in caching_layers(prefill, geometry):
        ranks = sharing(prefill, latent=bool(marker.attrs["latent"]))
        states = prompt_states(layer, marker, geometry, options, prompt_length, ranks)
        if geometry.shapes[layer].K:
            scorer = votes.scorer(layer, marker, marker.inputs[0], prompt_length)
            states = replace(states, scorer=scorer)
        graph.inputs.extend([states.key, states.value, *votes.inputs(states)])
        read = in_models_type(graph, marker, states)
        compress_layer(graph, geometry, layer, Scores.of(marker), read, storage)
    return graph


def caching_layers(prefill: gs.Graph, geometry: CacheGeometry) -> Iterator[tuple[int, gs.Node]]:
    """The layers that have caches of their own."""
    for layer, marker in markers(prefill, TRACE_DOMAIN, ATTENTION):
        if geometry.slots.source(layer) == layer:
            yield layer, marker


def in_models_type(graph: gs.Graph, marker: gs.Node, states: PromptStates) -> PromptStates:
    """The vote and what is kept go by the prompt's cache as it was rounded."""
    dtype = marker.inputs[1].dtype
    if states.key.dtype == dtype:
        return states
    own = {name: getattr(states, name) for name in ("query_window", "key", "value")}
    return replace(states, **{name: cast(graph, one, dtype) for name, one in own.items()})


def prompt_states(
    layer: int,
    marker: gs.Node,
    geometry: CacheGeometry,
    options: GraphOptions,
    prompt_length: gs.Tensor,
    ranks: int,
) -> PromptStates:
    """The inputs of a layer's compression. ranks: that keep the same positions."""
    query, key, value = (_stored(states, options) for states in marker.inputs[:3])
    batch, heads, _, head_dim = query.shape
    window_shape = (batch, heads, geometry.vote.L_obs, head_dim)
    return PromptStates(
        query_window=gs.Variable(names.query_window(layer), query.dtype, window_shape),
        key=cache_like(key, names.past_key(layer), geometry.L_max),
        value=cache_like(value, names.past_value(layer), geometry.L_max),
        prompt_length=prompt_length,
        latent=bool(marker.attrs["latent"]),
        sharing=ranks,
    )


def _stored(states: gs.Tensor, options: GraphOptions) -> gs.Variable:
    """Of the states' shape, in the type of the prompt's cache."""
    dtype = np.float16 if options.prompt_cache_dtype else states.dtype
    return gs.Variable(states.name, dtype, states.shape)
