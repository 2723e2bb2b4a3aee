"""Makes compress.onnx: from a prompt's full-length cache to its compressed one.

And vote.onnx, where the prompt is repeated: from a repeated chunk's queries to votes. Not traced:
they have no weights, and take their shapes from the prefill graph.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.vote import VOTING_ROWS
from snapexport.graphs.compression import (
    PromptStates,
    Scores,
    compress_layer,
    scored,
    sharing,
)
from snapexport.graphs.functions.repetition import repetition_votes
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import call, fresh, graph_input, int64s, markers, node
from snapexport.graphs.passes.cache import cache_like
from snapexport.graphs.passes.mean_query import MeanAngles, mean_query
from snapexport.graphs.passes.storage import cast, storage_of


def compress_graph(prefill: gs.Graph, geometry: CacheGeometry, options: GraphOptions) -> gs.Graph:
    """Compression of every layer of a traced (not yet rewritten) prefill graph."""
    storage = storage_of(options.cache_dtype)
    prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    graph = gs.Graph(name="compress", opset=prefill.opset, inputs=[prompt_length])
    angles = MeanAngles(graph, graph_input(prefill, names.INPUT_IDS).shape[1])
    for layer, marker in _caching(prefill, geometry):
        ranks = sharing(prefill, latent=bool(marker.attrs["latent"]))
        states = _inputs(layer, marker, geometry, options, prompt_length, ranks)
        if geometry.voters == "calibrated" and geometry.shapes[layer].K:
            states = replace(
                states, mean=mean_query(graph, marker, marker.inputs[0], prompt_length, angles)
            )
        graph.inputs.extend([states.key, states.value, *_deciding(states, geometry, layer)])
        read = _in_models_type(graph, marker, states)
        compress_layer(graph, geometry, layer, Scores.of(marker), read, storage)
    return graph


def vote_graph(prefill: gs.Graph, geometry: CacheGeometry, options: GraphOptions) -> gs.Graph:
    """A chunk's votes in every layer that has some, of a traced prefill graph.

    The chunk was run at the prompt's end. Each vote is the larger one of those before and of the
    chunk's.
    """
    prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    graph = gs.Graph(name="vote", opset=prefill.opset, inputs=[prompt_length])
    for layer, marker in _caching(prefill, geometry):
        if geometry.shapes[layer].K:
            states = _inputs(layer, marker, geometry, options, prompt_length, 1)
            read = [states.key, states.value] if states.latent else [states.key]
            graph.inputs.extend([*read, states.query_window, states.votes])
            votes = _with_chunk(graph, Scores.of(marker), _in_models_type(graph, marker, states))
            votes.name = names.present_votes(layer)
            graph.outputs.append(votes)
    return graph


def _caching(prefill: gs.Graph, geometry: CacheGeometry) -> Iterator[tuple[int, gs.Node]]:
    """The layers that have caches of their own."""
    for layer, marker in markers(prefill, TRACE_DOMAIN, ATTENTION):
        if geometry.slots.source(layer) == layer:
            yield layer, marker


def _with_chunk(graph: gs.Graph, scores: Scores, states: PromptStates) -> gs.Variable:
    """The votes with those of a chunk, some rows of its queries after the other."""
    keys, votes = scored(graph, states), states.votes
    function = repetition_votes(scores.softcap != 0)
    for first, rows in _blocks(graph, states.query_window):
        inputs, more = [rows, keys, states.prompt_length], [_like(graph, votes)]
        call(graph, function, inputs, more, first_row=first, **scores._asdict())
        (votes,) = node(graph, "Max", [votes, *more], [_like(graph, votes)])
    return votes


def _like(graph: gs.Graph, votes: gs.Tensor) -> gs.Variable:
    return gs.Variable(fresh(graph, "votes"), votes.dtype, votes.shape)


def _blocks(graph: gs.Graph, window: gs.Tensor) -> Iterator[tuple[int, gs.Tensor]]:
    """Up to VOTING_ROWS rows of the queries [1,H,W,D] at a time, with the first one's index."""
    batch, heads, count, head_dim = window.shape
    for first in range(0, count, VOTING_ROWS):
        end = min(first + VOTING_ROWS, count)
        shape = (batch, heads, end - first, head_dim)
        rows = gs.Variable(fresh(graph, "rows"), window.dtype, shape)
        node(graph, "Slice", [window, *(int64s(graph, n) for n in (first, end, 2))], [rows])
        yield first, rows


def _deciding(states: PromptStates, geometry: CacheGeometry, layer: int) -> list[gs.Tensor]:
    """What decides on the kept positions: the window, or votes in the layers that have some, or
    nothing of the prompt."""
    if geometry.voters == "calibrated":
        return []
    if geometry.voters != "repeat":
        return [states.query_window]
    return [states.votes] if geometry.shapes[layer].K else []


def _in_models_type(graph: gs.Graph, marker: gs.Node, states: PromptStates) -> PromptStates:
    """The vote and what is kept go by the prompt's cache as it was rounded."""
    dtype = marker.inputs[1].dtype
    if states.key.dtype == dtype:
        return states
    own = {name: getattr(states, name) for name in ("query_window", "key", "value")}
    return replace(states, **{name: cast(graph, one, dtype) for name, one in own.items()})


def _inputs(
    layer: int,
    marker: gs.Node,
    geometry: CacheGeometry,
    options: GraphOptions,
    prompt_length: gs.Tensor,
    ranks: int,
) -> PromptStates:
    query, key, value = (_stored(states, options) for states in marker.inputs[:3])
    batch, heads, _, head_dim = query.shape
    window_shape = (batch, heads, geometry.vote.L_obs, head_dim)
    votes_shape = (batch, key.shape[1], geometry.L_max)
    votes = gs.Variable(names.votes(layer), np.float32, votes_shape)
    return PromptStates(
        query_window=gs.Variable(names.query_window(layer), query.dtype, window_shape),
        key=cache_like(key, names.past_key(layer), geometry.L_max),
        value=cache_like(value, names.past_value(layer), geometry.L_max),
        prompt_length=prompt_length,
        latent=bool(marker.attrs["latent"]),
        sharing=ranks,
        votes=votes if geometry.voters == "repeat" else None,
    )


def _stored(states: gs.Tensor, options: GraphOptions) -> gs.Variable:
    """Of the states' shape, in the type of the prompt's cache."""
    dtype = np.float16 if options.prompt_cache_dtype else states.dtype
    return gs.Variable(states.name, dtype, states.shape)
