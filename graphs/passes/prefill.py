"""Prefill: appends chunks to a full-length cache, or takes a whole padded prompt at once."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.slots import Slots
from snapexport.graphs.compression import PromptStates, Scores, Voting, compress_layer, sharing
from snapexport.graphs.functions.vote import QUERY_WINDOW
from snapexport.graphs.markers import ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import call, cut, fresh, graph_input, int64s, markers, node
from snapexport.graphs.passes.cache import (
    Place,
    attend_to_cache_of,
    attend_with_cache,
    attention_attributes,
    cache_like,
)
from snapexport.graphs.passes.chunks import (
    Span,
    attend_in_chunks,
    attend_to_prompt_in_chunks,
    chunk_of,
    write_before_chunks,
)
from snapexport.graphs.passes.latents import EXPANDED, absorbed
from snapexport.graphs.passes.storage import storage_of


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


@dataclass(frozen=True)
class SingleShot:
    """Makes a whole prompt's prefill of a chunk's trace: no past, first position 0.

    It compresses layer by layer, as SnapStream does. No full-length cache is an input or output,
    and only one layer's is in memory at a time.
    """

    geometry: CacheGeometry
    options: GraphOptions
    voting: Callable[[gs.Graph, int], Voting]

    def apply(self, graph: gs.Graph) -> None:
        prompt_length, storage = self._rename_lengths(graph), storage_of(self.options.cache_dtype)
        votes = self.voting(graph, self.geometry.L_max) if self.geometry.compresses else None
        held: dict[int, tuple[gs.Tensor, gs.Tensor]] = {}
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            scores, source = Scores.of(marker), self.geometry.slots.source(layer)
            attributes = attention_attributes(marker, self.geometry.L_max)
            chunk = chunk_of(marker, self.geometry.L_max)
            has_vote = source == layer and self.geometry.widest[layer].K > 0
            scorer = (
                votes.scorer(layer, marker, marker.inputs[0], prompt_length)
                if votes and has_vote
                else None
            )
            (query, *own), outputs = cut(graph, marker)
            key, value = held.setdefault(source, (own[0], own[1]))
            inputs = [query, key, value, *own[2:]]
            if chunk:
                attend_to_prompt_in_chunks(graph, inputs, outputs[0], chunk, attributes)
            else:
                node(graph, PROMPT_ATTENTION, inputs, outputs, domain=CACHE_DOMAIN, **attributes)
            attention = graph.nodes[-1]
            if source != layer:
                continue
            if self.geometry.compresses:
                window = query_window(
                    graph, layer, attention, prompt_length, self.geometry.vote.L_obs
                )
                latent = bool(attributes["latent"])
                ranks = sharing(graph, latent=latent)
                states = PromptStates(window, key, value, prompt_length, latent, ranks, scorer)
                compress_layer(graph, self.geometry, layer, scores, states, storage)
            else:
                self._output_full(graph, layer, key, value)

    def _rename_lengths(self, graph: gs.Graph) -> gs.Variable:
        """Make past_length the constant 0, and rename chunk_length to prompt_length."""
        past_length = graph_input(graph, names.PAST_LENGTH)
        zero = int64s(graph, 0)
        for reader in list(past_length.outputs):
            reader.inputs = [zero if tensor is past_length else tensor for tensor in reader.inputs]
        graph.inputs.remove(past_length)
        prompt_length = graph_input(graph, names.CHUNK_LENGTH)
        prompt_length.name = names.PROMPT_LENGTH
        return prompt_length

    def _output_full(self, graph: gs.Graph, layer: int, key: gs.Tensor, value: gs.Tensor) -> None:
        presents = (names.present_key(layer), names.present_value(layer))
        for states, name in zip((key, value), presents, strict=True):
            present = cache_like(states, name, self.geometry.L_max)
            node(graph, "Identity", [states], [present])
            graph.outputs.append(present)
