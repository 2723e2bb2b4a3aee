"""Extend: appends a chunk of tokens to a compressed cache, and compresses both together.

Each layer lays its cached entries out in the order of their positions, then the chunk, which
attends as in prefill. Its last queries vote, or scores decide, and what was kept, what leaves the
ring and the chunk compete for the K places. The vote pools over neighbours in the cache.

A chunk's own tokens may be followed by others, whose position_ids are -1. They attend as if the
text went on with them, vote, and are not kept: so a prompt's end votes on each of its blocks
(FINCH, arXiv:2408.00167).

ExtendGather: the compressed cache of a longer prompt, of what was cached and of the new tokens.

key, value [1,Hkv,N,D] and entry_position int64 [1,Hkv,N], entries in the order of their positions,
entries and total_length int64 [1], chosen int64 [1,Hkv,K], ascending, -1 where unused
    -> present_key, present_value [1,Hkv,S,D], slot_positions int64 [1,Hkv,S], -1 where empty.
Attributes: L_sink, L_recent, and spare (int): the ring has L_recent + spare slots, and its newest
L_recent positions are filled in.

As SnapStreamGather, which has all positions: if entries <= S, entry e is at slot e. Else entry e
of the ring is position e + total_length - entries, since what was not kept is gone. Sinks are never
gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.graphs.compression import (
    PromptStates,
    Scorer,
    Scores,
    column,
    select,
    sharing,
)
from snapexport.graphs.functions import Function
from snapexport.graphs.markers import ATTENTION, CACHE_ATTENTION, CACHE_DOMAIN, TRACE_DOMAIN
from snapexport.graphs.method import GraphSurgery, MethodSurgery, Recipe, Size, of_trace, voting
from snapexport.graphs.passes.base import (
    Pass,
    call,
    computed_range,
    cut,
    fresh,
    graph_input,
    int64s,
    markers,
    node,
)
from snapexport.graphs.passes.cache import attention_attributes, cache_like
from snapexport.graphs.passes.chunks import chunk_mask, column_of, taken_tokens
from snapexport.graphs.passes.latents import EXPANDED, absorbed
from snapexport.graphs.passes.storage import Chunk, Storage, storage_of
from snapexport.methods.extend.spec import GRAPH, present_slot_positions

EXTEND_GATHER = Function(
    "ExtendGather",
    """
<domain: "snapexport", opset_import: ["": 24]>
ExtendGather <L_sink, L_recent, spare> (key, value, entry_position, entries, total_length, chosen)
    => (present_key, present_value, slot_positions)
{
  s = Constant <value_int: int = @L_sink> ()
  seen = Constant <value_int: int = @L_recent> ()
  more = Constant <value_int: int = @spare> ()
  R = Add (seen, more)
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  none = Constant <value_int = -1> ()
  last_axis = Constant <value_ints = [-1]> ()

  # A ring slot holds p = newest - (newest - slot) mod R, if p >= s, which is entry p - gone.
  window = Add (s, R)
  slot = Range (zero, window, one)
  newest = Sub (total_length, one)
  behind = Sub (newest, slot)
  age = Mod (behind, R)
  latest = Sub (newest, age)
  gone = Sub (total_length, entries)
  ring_entry = Sub (latest, gone)
  before = Sub (total_length, seen)
  oldest = Max (s, before)
  in_ring = GreaterOrEqual (latest, oldest)
  held_in_ring = Where (in_ring, ring_entry, none)
  is_sink = Less (slot, s)
  window_entry = Where (is_sink, slot, held_in_ring)

  # The entry in each cache slot, -1 where empty: [1, Hkv, S].
  kv_heads = Shape <start = 0, end = 2> (key)
  width = Reshape (window, last_axis)
  window_shape = Concat <axis = 0> (kv_heads, width)
  for_all_heads = Expand (window_entry, window_shape)
  if_compressed = Concat <axis = -1> (for_all_heads, chosen)

  # Of entries that fit, the slot's own number.
  K = Shape <start = 2, end = 3> (chosen)
  slots = Add (window, K)
  size = Sub (slots, more)
  is_whole = LessOrEqual (entries, size)
  length = Squeeze (slots)
  own_slot = Range (zero, length, one)
  is_entry = Less (own_slot, entries)
  if_whole = Where (is_entry, own_slot, none)
  entry = Where (is_whole, if_whole, if_compressed)

  present = GreaterOrEqual (entry, zero)
  clipped = Max (entry, zero)
  positions = GatherElements <axis = 2> (entry_position, clipped)
  slot_positions = Where (present, positions, none)
  filled = Unsqueeze (present, last_axis)
  index = Unsqueeze (clipped, last_axis)
  keys = GatherND <batch_dims = 2> (key, index)
  values = GatherND <batch_dims = 2> (value, index)
  filling = CastLike (filled, key)
  present_key = Mul (keys, filling)
  present_value = Mul (values, filling)
}
""",
)


@dataclass(frozen=True)
class ExtendCache:
    """Makes the graph of one more chunk of a prompt of a trace of prefill.

    Caches [1,Hkv,S,D] and slot_positions int64 [1,Hkv,S] in and out, for each layer.
    """

    recipe: Recipe

    @property
    def geometry(self) -> CacheGeometry:
        return self.recipe.geometry

    def apply(self, graph: gs.Graph) -> None:
        chunk = _Chunk(graph, self.recipe)
        storage = storage_of(self.recipe.options.cache_dtype)
        entries: dict[LayerGeometry, _Entries] = {}
        states, sources = dict[int, list[gs.Tensor]](), self.geometry.slots.read_by
        for layer, marker in markers(graph, TRACE_DOMAIN, ATTENTION):
            if (source := sources[layer]) != layer:
                _attend(graph, marker, states[source])
                continue
            shape = self.geometry.shapes[layer]
            held = self._slot_positions(graph, layer, marker, shape)
            if shape not in entries:
                entries[shape] = _Entries(graph, chunk, shape)
            of_shape = entries[shape]
            states[layer] = self._extend(graph, layer, marker, held, of_shape, chunk, storage)

    def _slot_positions(
        self, graph: gs.Graph, layer: int, marker: gs.Node, shape: LayerGeometry
    ) -> gs.Variable:
        kv_heads = marker.inputs[1].shape[1]
        name = names.slot_positions(layer)
        held = gs.Variable(name, np.int64, (1, kv_heads, shape.cache_slots))
        graph.inputs.append(held)
        return held

    def _extend(
        self,
        graph: gs.Graph,
        layer: int,
        marker: gs.Node,
        held: gs.Variable,
        entries: "_Entries",
        chunk: "_Chunk",
        storage: Storage,
    ) -> list[gs.Tensor]:
        """Returns what attention reads: the chunk's key and value, all entries', and the place."""
        shape, scores = self.geometry.shapes[layer], Scores.of(marker)
        query, key, value, *more = marker.inputs
        scorer = chunk.voting.scorer(layer, marker, query, chunk.total_length) if shape.K else None
        rows = storage.rows(graph, layer, Chunk(key, value, chunk.length, entries.valid))
        pasts = _pasts(graph, layer, rows, shape.cache_slots)
        stored = [entries.of_cache(past, new) for past, new in zip(pasts, rows, strict=True)]
        whole = storage.read(graph, layer, stored, key.dtype)
        read, form = [key, value, *whole, *entries.place], marker.attrs["latent"]
        if shape.chunk:
            read[-1] = entries.chunk_mask
        _attend(graph, marker, read)
        window = chunk.query_window(query)
        if form == EXPANDED:
            window = absorbed(graph, window, more[0])
        ranks = sharing(graph, latent=bool(form))
        states = PromptStates(window, whole[0], whole[1], entries.total, bool(form), ranks)
        if scorer and scorer.kept_as:
            scorer = scorer.of_entries(_scores(graph, scorer, scorer.kept_as(layer), entries))
        states = replace(states, scorer=scorer)
        name = fresh(graph, "chosen")
        chosen = select(graph, self.geometry, layer, scores, states, name)
        _keep(graph, layer, shape, [*stored, entries.positions(held)], states, chunk, chosen)
        return read


def _attend(graph: gs.Graph, marker: gs.Node, read: list[gs.Tensor]) -> None:
    """Replace a traced attention by one over entries, which hold the chunk's."""
    attributes = attention_attributes(marker, read[2].shape[2])
    attributes |= {"appends": int(read[-1].dtype != np.bool_), "valid_only": 0}
    (query, _, _, *more), (out,) = cut(graph, marker)
    inputs = [query, *read, *more]
    node(graph, CACHE_ATTENTION, inputs, [out], domain=CACHE_DOMAIN, **attributes)


def _keep(
    graph: gs.Graph,
    layer: int,
    shape: LayerGeometry,
    entries: list[gs.Variable],
    states: PromptStates,
    chunk: "_Chunk",
    chosen: gs.Tensor,
) -> None:
    """Append the layer's outputs. entries: stored keys and values, and positions."""
    rows, names_of = entries[:2], (names.present_key, names.present_value)
    outputs = [
        cache_like(row, name(layer), shape.cache_slots)
        for row, name in zip(rows, names_of, strict=True)
    ]
    held = (*entries[2].shape[:2], shape.cache_slots)
    outputs.append(gs.Variable(present_slot_positions(layer), np.int64, held))
    inputs = [*entries, states.prompt_length, chunk.total_length, chosen]
    ring = {"L_sink": shape.L_sink, "L_recent": shape.L_recent, "spare": shape.spare}
    call(graph, EXTEND_GATHER, inputs, outputs, **ring)
    graph.outputs.extend(outputs)
    if states.scorer and states.scorer.kept_as:
        scores = column(graph, states.scorer.given)
        name = names.present_of(states.scorer.kept_as(layer))
        spare = [gs.Variable(fresh(graph, "spare")) for _ in range(2)]
        graph.outputs.append(cache_like(scores, name, shape.cache_slots))
        inputs = [scores, scores, *inputs[2:]]
        call(graph, EXTEND_GATHER, inputs, [graph.outputs[-1], *spare], **ring)


def _scores(graph: gs.Graph, scorer: Scorer, past: str, entries: "_Entries") -> gs.Variable:
    """The scores of all entries, float32 [1,Hkv,N]: those of a cache `past`, and the chunk's."""
    new = column(graph, scorer.given)
    held = cache_like(new, past, entries.slots)
    graph.inputs.append(held)
    both = entries.of_cache(held, new)
    flat = gs.Variable(fresh(graph, "scores"), both.dtype, both.shape[:3])
    return node(graph, "Squeeze", [both, int64s(graph, -1)], [flat])[0]


def _pasts(graph: gs.Graph, layer: int, rows: list[gs.Variable], slots: int) -> list[gs.Variable]:
    """Add the layer's cache inputs, stored as `rows` are."""
    past_names = names.past_key(layer), names.past_value(layer)
    pasts = [cache_like(row, name, slots) for row, name in zip(rows, past_names, strict=True)]
    graph.inputs.extend(pasts)
    return pasts


class _Chunk:
    """The chunk's inputs, and what every layer computes of them alike.

    taken: int64 [1], valid tokens that have a position: they come into the cache.
    total_length: int64 [1], of the prompt up to the last of these.
    """

    def __init__(self, graph: gs.Graph, recipe: Recipe) -> None:
        self._graph, self._window = graph, recipe.geometry.vote.L_obs
        self.tokens: int = graph_input(graph, names.INPUT_IDS).shape[1]
        self.length = graph_input(graph, names.CHUNK_LENGTH)
        self.positions = gs.Variable(names.POSITION_IDS, np.int64, (1, self.tokens))
        self.first = self._take_first()
        self.taken = taken_tokens(graph)
        (self.total_length,) = node(graph, "Add", [self.first, self.taken])
        self._rows: gs.Tensor | None = None
        self.voting = voting(recipe, graph, self.tokens)

    def _take_first(self) -> gs.Tensor:
        """The chunk's first position, int64 [1], in the place of past_length."""
        graph = self._graph
        past_length = graph_input(graph, names.PAST_LENGTH)
        ends = [int64s(graph, n) for n in (0, 1, 1)]
        first = gs.Variable(fresh(graph, "first"), np.int64, (1,))
        readers = list(past_length.outputs)
        (flat,) = node(graph, "Reshape", [self.positions, int64s(graph, -1)])
        node(graph, "Slice", [flat, *ends[:2], int64s(graph, 0)], [first])
        for reader in readers:
            reader.inputs = [first if name is past_length else name for name in reader.inputs]
        graph.inputs[graph.inputs.index(past_length)] = self.positions
        return first

    def query_window(self, query: gs.Tensor) -> gs.Variable:
        """The last W valid queries, [1,H,W,D]; fewer are repeated in turn: all count alike."""
        batch, heads, _, head_dim = query.shape
        shape = (batch, heads, self._window, head_dim)
        window = gs.Variable(fresh(self._graph, "window"), query.dtype, shape)
        node(self._graph, "Gather", [query, self._window_rows()], [window], axis=2)
        return window

    def _window_rows(self) -> gs.Tensor:
        if self._rows is None:
            graph = self._graph
            ahead = computed_range(graph, 1 - self._window, 1)  # W - 1 rows before the last, ...
            (behind,) = node(graph, "Neg", [ahead])
            (turned,) = node(graph, "Mod", [behind, self.length])
            (last,) = node(graph, "Sub", [self.length, int64s(graph, 1)])
            (self._rows,) = node(graph, "Sub", [last, turned])
        return self._rows


class _Entries:
    """The entries of layers of one shape: of a cache in the order of positions, then of the chunk.

    slots: S. count: N = S + C. valid: int64 [1], cached entries. total: int64 [1], with the
    chunk's, but for those that only vote.
    """

    def __init__(self, graph: gs.Graph, chunk: _Chunk, shape: LayerGeometry) -> None:
        self._graph, self._chunk, self._shape = graph, chunk, shape
        self.slots, self.count = shape.cache_slots, shape.cache_slots + chunk.tokens
        self._index = computed_range(graph, 0, self.count)
        (self.valid,) = node(graph, "Min", [chunk.first, int64s(graph, shape.size)])
        (self.total,) = node(graph, "Add", [self.valid, chunk.taken])
        (end,) = node(graph, "Add", [self.valid, int64s(graph, chunk.tokens)])
        self.place = [self.valid, end]
        self._source = self._sources(shape)
        (self._is_entry,) = node(graph, "Less", [self._index, self.total])

    @cached_property
    def chunk_mask(self) -> gs.Tensor:
        """Bool [1,1,C,N]: entries of a row's chunk. Those of a ring are positions in a row."""
        graph, tokens = self._graph, self._chunk.tokens
        (flat,) = node(graph, "Add", [self._chunk.first, computed_range(graph, 0, tokens)])
        (rows,) = node(graph, "Unsqueeze", [flat, int64s(graph, 0)])
        (gone,) = node(graph, "Sub", [self._chunk.first, self.valid])
        (columns,) = node(graph, "Add", [self._index, gone])
        shape = (1, 1, tokens, self.count)
        return chunk_mask(graph, column_of(graph, rows), columns, self._shape.chunk, shape)

    def of_cache(self, past: gs.Tensor, rows: gs.Tensor) -> gs.Variable:
        """Past [1,Hkv,S,D] and rows [1,Hkv,C,D] -> entries [1,Hkv,N,D]."""
        graph = self._graph
        both = cache_like(rows, fresh(graph, "both"), self.count)
        entries = cache_like(rows, fresh(graph, "entries"), self.count)
        node(graph, "Concat", [past, rows], [both], axis=2)
        return node(graph, "Gather", [both, self._source], [entries], axis=2)[0]

    def positions(self, held: gs.Variable) -> gs.Variable:
        """slot_positions -> the position of each entry, int64 [1,Hkv,N], -1 after the last."""
        graph, kv_heads = self._graph, held.shape[1]
        shape = int64s(graph, 1, kv_heads, self._chunk.tokens)
        new = node(graph, "Expand", [self._chunk.positions, shape])
        both = node(graph, "Concat", [held, *new], axis=2)
        ordered = node(graph, "Gather", [*both, self._source], axis=2)
        none = gs.Constant(fresh(graph, "none"), np.array(-1, np.int64))
        positions = gs.Variable(fresh(graph, "positions"), np.int64, (1, kv_heads, self.count))
        return node(graph, "Where", [self._is_entry, *ordered, none], [positions])[0]

    def _sources(self, shape: LayerGeometry) -> gs.Tensor:
        """Where each entry is in [cache slots, chunk], int64 [N].

        In a cache that holds the prompt so far whole, at the slot of its number.
        """
        graph, index, s = self._graph, self._index, shape.L_sink
        (gone,) = node(graph, "Sub", [self._chunk.first, self.valid])
        # Of the ring: entry e is position e + gone, which is in slot s + (position - s) mod R.
        (past_sinks,) = node(graph, "Add", [index, *node(graph, "Sub", [gone, int64s(graph, s)])])
        (turn,) = node(graph, "Mod", [past_sinks, int64s(graph, shape.ring_slots)])
        (ring_slot,) = node(graph, "Add", [turn, int64s(graph, s)])
        (kept_slot,) = node(graph, "Add", [index, int64s(graph, shape.ring_slots)])
        (row,) = node(graph, "Sub", [index, self.valid])
        (behind,) = node(graph, "Add", [row, int64s(graph, self.slots)])
        (new,) = node(graph, "Min", [behind, int64s(graph, self.count - 1)])
        is_sink = node(graph, "Less", [index, int64s(graph, s)])
        is_kept = node(graph, "Less", [index, int64s(graph, s + shape.K)])
        is_cached = node(graph, "Less", [index, self.valid])
        in_ring_or_kept = node(graph, "Where", [*is_kept, kept_slot, ring_slot])
        is_whole = node(graph, "LessOrEqual", [self._chunk.first, int64s(graph, shape.size)])
        at_own_slot = node(graph, "Or", [*is_sink, *is_whole])
        in_cache = node(graph, "Where", [*at_own_slot, index, *in_ring_or_kept])
        return node(graph, "Where", [*is_cached, *in_cache, new])[0]


def _caches(recipe: Recipe, size: Size) -> Sequence[Pass]:
    return (ExtendCache(recipe),)


def _start(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    graph = of_trace(prefill, recipe)
    graph.name = GRAPH
    return graph


class ExtendSurgery(MethodSurgery):
    """extend.onnx, of prefill's trace."""

    kinds: ClassVar = {GRAPH: GraphSurgery(_caches, _start)}


SURGERY = ExtendSurgery()
