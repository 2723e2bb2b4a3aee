"""Compresses the caches of one layer: vote, select, gather. Both prefill layouts share it.

Chunked prefill compresses in a graph of its own, compress.onnx; single-shot prefill in the layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.slots import LayerGeometry
from snapexport.contract.vote import Vote
from snapexport.graphs.functions.rings import SNAPSTREAM_GATHER
from snapexport.graphs.functions.vote import select_voted, snapkv_select
from snapexport.graphs.markers import ALL_GATHER, ALL_REDUCE, ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import call, fresh, graph_input, int64s, markers, node
from snapexport.graphs.passes.cache import cache_like, of_heads, query_heads
from snapexport.graphs.passes.storage import Prompt, Storage, cast, storage_of


class Scores(NamedTuple):
    """How attention turns a product of query and key into a score. softcap 0.0: no soft cap."""

    scale: float
    softcap: float

    @classmethod
    def of(cls, marker: gs.Node) -> "Scores":
        """The attributes of a traced attention."""
        return cls(float(marker.attrs["scale"]), float(marker.attrs["softcap"]))


@dataclass(frozen=True)
class PromptStates:
    """Inputs of a layer's compression: query_window [1,H,W,D], key and value [1,Hkv,T,D].

    latent: key and value are the two parts of what the queries score. sharing: ranks that have some
    query heads each, and keep the same positions. scorer: what decides in the window's place.
    """

    query_window: gs.Tensor
    key: gs.Tensor
    value: gs.Tensor
    prompt_length: gs.Tensor
    latent: bool = False
    sharing: int = 1
    scorer: "Scorer | None" = None

    def of(self, graph: gs.Graph, heads: tuple[int, ...] | None) -> "PromptStates":
        """The part of some KV heads; None: of all."""
        if heads is None:
            return self
        own = query_heads(heads, self.query_window.shape[1] // self.key.shape[1])
        return replace(
            self,
            scorer=self.scorer and self.scorer.of(graph, heads, own),
            query_window=of_heads(graph, self.query_window, own),
            key=of_heads(graph, self.key, heads),
            value=of_heads(graph, self.value, heads),
        )


class Scorer(Protocol):
    """Scores a layer's positions in the place of the window's vote.

    is_pooled: whether neighbours share votes. given: the scores where there are some, float32
    [1,Hkv,T]. kept_as: the input of decode that holds those of cached positions, [B,Hkv,S,1], by
    cache; None: none does.
    """

    is_pooled: bool

    @property
    def kept_as(self) -> names.OfNumber | None: ...
    @property
    def given(self) -> gs.Tensor: ...

    def of(self, graph: gs.Graph, heads: Sequence[int], queries: Sequence[int]) -> "Scorer":
        """The scorer of some KV heads, and of their query heads."""

    def of_entries(self, given: gs.Tensor) -> "Scorer":
        """The scorer with scores of other positions."""

    def votes(self, graph: gs.Graph, states: PromptStates, layout: LayerGeometry) -> gs.Tensor:
        """Append the votes, float32 [1,Hkv,T]."""


class Voting:
    """Decides on the kept positions in one graph of compression: by the window of queries.

    A method that is about who votes overrides both.
    """

    def __init__(
        self, graph: gs.Graph, geometry: CacheGeometry, options: GraphOptions, tokens: int
    ) -> None:
        """tokens: of the trace's chunk."""
        self.graph, self.geometry, self.options, self.tokens = graph, geometry, options, tokens

    def scorer(
        self, layer: int, marker: gs.Node, query: gs.Tensor, length: gs.Tensor
    ) -> Scorer | None:
        """The scorer of a layer that keeps voted positions; None: the window decides.

        query: of the marker, [1,H,C,D]. length: of the prompt so far, int64 [1].
        """
        return None

    def inputs(self, states: PromptStates) -> list[gs.Tensor]:
        """The inputs by which a layer's compress step decides."""
        return [states.query_window]


def sharing(graph: gs.Graph, *, latent: bool) -> int:
    """The ranks that keep the same positions, in a graph with markers of collectives.

    Each has KV heads of its own, and keeps what these vote for, unless all heads read one latent.
    """
    found = [node for node in graph.nodes if (node.domain, node.op) == (TRACE_DOMAIN, ALL_REDUCE)]
    return int(found[0].attrs["ranks"]) if found and latent else 1


def compress_layer(
    graph: gs.Graph,
    geometry: CacheGeometry,
    layer: int,
    scores: Scores,
    states: PromptStates,
    storage: Storage,
) -> None:
    """Append the layer's compression and its outputs, for each of its caches c: present.{c}.* and
    topk_positions.{c}."""
    for index, _, heads in geometry.slots.caches_of(layer):
        _compress_cache(graph, geometry, index, scores, states.of(graph, heads), storage)


def _compress_cache(
    graph: gs.Graph,
    geometry: CacheGeometry,
    layer: int,
    scores: Scores,
    states: PromptStates,
    storage: Storage,
) -> None:
    layout = geometry.shapes[layer]
    kept = [
        cache_like(tensor, fresh(graph, "kept"), layout.cache_slots)
        for tensor in (states.key, states.value)
    ]
    positions = select(graph, geometry, layer, scores, states, names.topk_positions(layer))
    inputs = [states.key, states.value, states.prompt_length, positions]
    ring = {"L_sink": layout.L_sink, "L_recent": layout.L_recent, "spare": layout.spare}
    call(graph, SNAPSTREAM_GATHER, inputs, kept, **ring)
    prompt = Prompt(states.key, states.value, states.prompt_length)
    graph.outputs.extend(storage.compressed(graph, layer, prompt, kept))
    if layout.K:
        graph.outputs.append(positions)
    if states.scorer and states.scorer.kept_as:
        scores, spare = column(graph, states.scorer.given), gs.Variable(fresh(graph, "spare"))
        name = names.present_of(states.scorer.kept_as(layer))
        graph.outputs.append(cache_like(scores, name, layout.cache_slots))
        inputs = [scores, scores, states.prompt_length, positions]
        call(graph, SNAPSTREAM_GATHER, inputs, [graph.outputs[-1], spare], **ring)


def column(graph: gs.Graph, scores: gs.Tensor) -> gs.Variable:
    """Scores [B,Hkv,N] as caches hold them, [B,Hkv,N,1]."""
    out = gs.Variable(fresh(graph, "column"), scores.dtype, (*scores.shape, 1))
    return node(graph, "Unsqueeze", [scores, int64s(graph, -1)], [out])[0]


def select(
    graph: gs.Graph,
    geometry: CacheGeometry,
    layer: int,
    scores: Scores,
    states: PromptStates,
    name: str,
) -> gs.Tensor:
    """The tensor `name`: the indices that the layer's vote keeps, int64 [1,Hkv,K], ascending."""
    return choose(graph, geometry.vote, geometry.shapes[layer], scores, states, name)


def choose(
    graph: gs.Graph,
    vote: Vote,
    layout: LayerGeometry,
    scores: Scores,
    states: PromptStates,
    name: str,
) -> gs.Tensor:
    """The same by a layer's shape."""
    shape = (*states.key.shape[:2], layout.K)
    if layout.K == 0:
        return gs.Constant(fresh(graph, "no_positions"), np.zeros(shape, np.int64))
    positions = gs.Variable(name, np.int64, shape)
    kernel = vote.pool_kernel if states.scorer is None or states.scorer.is_pooled else 1
    sizes = {"K": [layout.K], "pool_kernel": [1, kernel], **window_of(layout)}
    if states.scorer is not None:
        votes = states.scorer.votes(graph, states, layout)
        function = select_voted(vote.options, kernel)
        call(graph, function, [votes, states.prompt_length], [positions], **sizes)
        return positions
    voting = [_voting(graph, states), scored(graph, states), states.prompt_length]
    options = scores._asdict() | vote.options
    function = snapkv_select(vote.options, kernel, scores.softcap != 0)
    call(graph, function, voting, [positions], **sizes, **options)
    return positions


def _voting(graph: gs.Graph, states: PromptStates) -> gs.Tensor:
    """The queries of all heads that vote: ranks that keep the same positions exchange theirs."""
    window, ranks = states.query_window, states.sharing
    if ranks == 1:
        return window
    batch, heads, *others = window.shape
    every = gs.Variable(fresh(graph, "windows"), window.dtype, (batch, ranks * heads, *others))
    attributes = {"ranks": ranks, "axis": 1}
    return node(graph, ALL_GATHER, [window], [every], domain=TRACE_DOMAIN, **attributes)[0]


def scored(graph: gs.Graph, states: PromptStates) -> gs.Tensor:
    """The keys [1,Hkv,T,D] that the queries score."""
    if not states.latent:
        return states.key
    (batch, kv_heads, positions, rank), width = states.key.shape, states.value.shape[3]
    shape = (batch, kv_heads, positions, rank + width)
    both = gs.Variable(fresh(graph, "latents"), states.key.dtype, shape)
    return node(graph, "Concat", [states.key, states.value], [both], axis=-1)[0]


def window_of(layout: LayerGeometry) -> dict[str, int]:
    """The attributes of a vote by which it knows the eligible positions."""
    return {"L_sink": layout.L_sink, "L_recent": layout.L_recent}


def compress_graph(
    prefill: gs.Graph,
    geometry: CacheGeometry,
    options: GraphOptions,
    voting: Callable[[gs.Graph, int], Voting],
) -> gs.Graph:
    """compress.onnx: from a prompt's full-length cache to its compressed one.

    It is not traced: it has no weights, and takes its shapes from a traced (not yet rewritten)
    prefill graph. voting: makes what decides on the kept positions, of the new graph and of the
    tokens of the trace's chunk.
    """
    storage = storage_of(options.cache_dtype)
    prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    graph = gs.Graph(name="compress", opset=prefill.opset, inputs=[prompt_length])
    votes = voting(graph, graph_input(prefill, names.INPUT_IDS).shape[1])
    voting_layers = {layer for layer, shape in geometry.widest.items() if shape.K}
    for layer, marker in caching_layers(prefill, geometry):
        ranks = sharing(prefill, latent=bool(marker.attrs["latent"]))
        states = prompt_states(layer, marker, geometry, options, prompt_length, ranks)
        if layer in voting_layers:
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
    query, key, value = (_prompt_cache(states, options) for states in marker.inputs[:3])
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


def _prompt_cache(states: gs.Tensor, options: GraphOptions) -> gs.Variable:
    """A variable of the states' shape, in the type of the prompt's cache."""
    dtype = np.float16 if options.prompt_cache_dtype else states.dtype
    return gs.Variable(states.name, dtype, states.shape)
