"""Sparse prefill: a chunk inside a long prompt attends to a part of its past, of a fixed size.

It is written into the full-length cache as in prefill. Each KV head then attends to the blocks that
BlockSelect chooses, and a layer with a window to that window. Layers that attend in chunks, or
whose window is wider than the budget, attend as in prefill.

`past_block_key` holds means of the keys of each block. A chunk brings up to date those of the
positions before it, as many as the budget and a chunk have. Earlier ones are right by then: the
first sparse chunk of a prompt has no more before it, and each chunk no more than one that is new.

BlockSelect: the positions of a prompt's past that a chunk attends to (sparse prefill).

query [1,H,C,D], block_key [1,Hkv,M,D], the means of the keys of each block, past_length int64 [1]
    -> positions int64 [1,Hkv,N], ascending: those of N / block blocks before past_length.
Attributes: block, recent (int), blocks (ints, [N / block]), scale (float).

The first block and the `recent` latest ones are always among them. Of the others those are taken
that get most attention, ties to the lower one: the means of each `block` queries share a softmax
over those blocks' means, and the shares of a KV head's queries are added up. past_length is a
multiple of block, and C is one, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.functions.function import Function
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.method import MethodSurgery
from snapexport.graphs.passes.base import (
    Pass,
    call,
    computed_range,
    cut,
    fresh,
    graph_input,
    graph_output,
    int64s,
    node,
    written,
)
from snapexport.graphs.passes.cache import Place, attention_attributes, cache_like
from snapexport.graphs.passes.prefill_cache import PrefillCache
from snapexport.graphs.passes.storage import cast
from snapexport.graphs.recipe import GraphSurgery, Recipe, Size
from snapexport.methods.sparse_prefill.spec import (
    GRAPH,
    SparsePrefill,
    past_block_key,
    present_block_key,
    sparse_prefill,
)

BLOCK_SELECT = Function(
    "BlockSelect",
    """
<domain: "snapexport", opset_import: ["": 24]>
BlockSelect <block, recent, blocks, scale> (query, block_key, past_length) => (positions)
{
  b = Constant <value_int: int = @block> ()
  near = Constant <value_int: int = @recent> ()
  count = Constant <value_ints: ints = @blocks> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  rest = Constant <value_ints = [-1]> ()
  last_axis = Constant <value_ints = [1]> ()
  third_axis = Constant <value_ints = [3]> ()
  lowest = Constant <value_float = -3.0e38> ()
  no_vote = Constant <value_float = -1.0> ()
  highest = Constant <value_float = 3.0e38> ()

  # A mean of each block of queries, the query heads folded into their KV head: [1, Hkv, R, D].
  kv_heads = Shape <start = 0, end = 2> (block_key)
  head_dim = Shape <start = 3> (block_key)
  width = Reshape (b, rest)
  grouped_shape = Concat <axis = 0> (kv_heads, rest, width, head_dim)
  grouped = Reshape (query, grouped_shape)
  queries = Cast <to = 1> (grouped)
  means = ReduceMean <keepdims = 0> (queries, third_axis)
  factor = Constant <value_float: float = @scale> ()
  scaled = Mul (means, factor)
  keys = Cast <to = 1> (block_key)
  columns = Transpose <perm = [0, 1, 3, 2]> (scaled)
  by_block = MatMul (keys, columns)

  # Which blocks are before the chunk, and which are taken in any case: [M, 1].
  M = Shape <start = 2, end = 3> (block_key)
  length = Squeeze (M)
  flat = Range (zero, length, one)
  index = Unsqueeze (flat, last_axis)
  end = Div (past_length, b)
  is_past = Less (index, end)
  latest = Sub (end, near)
  is_near = GreaterOrEqual (index, latest)
  is_first = Less (index, one)
  is_taken = Or (is_near, is_first)
  is_other = Not (is_taken)

  scores = Where (is_other, by_block, lowest)
  share = Softmax <axis = 2> (scores)
  votes = ReduceSum <keepdims = 1> (share, third_axis)
  of_others = Where (is_other, votes, highest)
  ranked = Where (is_past, of_others, no_vote)
  column = Squeeze (ranked, third_axis)
  best, chosen = TopK <axis = -1, largest = 1, sorted = 1> (column, count)
  ascending, order = TopK <axis = -1, largest = 0, sorted = 1> (chosen, count)
  starts = Mul (ascending, b)
  first = Unsqueeze (starts, third_axis)
  offset = Range (zero, b, one)
  spread = Add (first, offset)
  shape = Concat <axis = 0> (kv_heads, rest)
  positions = Reshape (spread, shape)
}
""",
)


@dataclass(frozen=True)
class SparsePrefillCache(PrefillCache):
    """Does as PrefillCache for a chunk whose past is longer than the budget. It has no logits."""

    sparse: SparsePrefill

    def apply(self, graph: gs.Graph) -> None:
        graph.name = GRAPH
        graph.outputs = [one for one in graph.outputs if one.name != names.LOGITS]
        super().apply(graph)
        length = graph_input(graph, names.CHUNK_LENGTH)  # of the logits
        graph.inputs = [one for one in graph.inputs if one is not length]

    def attend(self, graph: gs.Graph, layer: int, marker: gs.Node, place: Place) -> None:
        """Replace a traced attention by one to a part of the past, if it sees more than that."""
        before, source = int(marker.attrs["window"]) - 1, self.slots.source(layer)
        if before == 0 or before > self.sparse.budget or marker.attrs.get("chunk"):
            super().attend(graph, layer, marker, place)
            return
        is_window = before >= 0
        if source == layer:
            self._write(graph, layer, marker, place.slot)
            if not is_window:
                self._write_blocks(graph, layer, place.slot)
        writers = [graph_output(graph, name(source)).inputs[0] for name in _PRESENTS]
        if is_window:
            count, read = before, _window(graph, place.slot, before)
        else:
            count, read = self.sparse.budget, self._blocks(graph, marker, source, place.slot)
        states = [writer.inputs[1] for writer in writers]
        part = [_part(graph, writer.inputs[0], read, writer.inputs[1]) for writer in writers]
        ends = [int64s(graph, count), int64s(graph, part[0].shape[2])]
        attributes = attention_attributes(marker, part[0].shape[2])
        (query, _, _, *more), (out,) = cut(graph, marker)
        inputs = [query, *states, *part, *ends, *more]
        attributes |= {"appends": 1, "valid_only": 0}
        node(graph, CACHE_ATTENTION, inputs, [out], domain=CACHE_DOMAIN, **attributes)

    def _write(self, graph: gs.Graph, layer: int, marker: gs.Node, slot: gs.Tensor) -> None:
        """Write a chunk's keys and values into the full-length cache."""
        rows, names_of = marker.inputs[1:3], (names.past_key, names.past_value)
        pasts = [
            cache_like(row, name(layer), self.positions)
            for row, name in zip(rows, names_of, strict=True)
        ]
        presents = [cache_like(one, names.present_of(one.name), self.positions) for one in pasts]
        graph.inputs.extend(pasts)
        graph.outputs.extend(written(graph, pasts, rows, slot, presents))

    def _write_blocks(self, graph: gs.Graph, layer: int, past_length: gs.Tensor) -> None:
        """Write means of the keys before the chunk: as many as the budget and a chunk have."""
        key, size = graph_input(graph, names.past_key(layer)), self.sparse.block
        span = self.sparse.budget + self.sparse.chunk
        (before,) = node(graph, "Sub", [past_length, int64s(graph, span)])
        (start,) = node(graph, "Max", [before, int64s(graph, 0)])
        index = node(graph, "Add", [start, computed_range(graph, 0, span)])
        (part,) = node(graph, "Gather", [key, *index], axis=2)
        _, kv_heads, _, width = key.shape
        shape = (1, kv_heads, span // size, size, width)
        blocks = gs.Variable(fresh(graph, "blocks"), key.dtype, shape)
        node(graph, "Reshape", [part, int64s(graph, *shape)], [blocks])
        wide = cast(graph, blocks, np.float32)
        mean = node(graph, "ReduceMean", [wide, int64s(graph, 3)], keepdims=0)
        new = node(graph, "CastLike", [*mean, key])
        past = cache_like(key, past_block_key(layer), self.positions // size)
        present = cache_like(past, present_block_key(layer), past.shape[2])
        (slot,) = node(graph, "Div", [start, int64s(graph, size)])
        written(graph, [past], new, slot, [present])
        graph.inputs.append(past)
        graph.outputs.append(present)

    def _blocks(
        self, graph: gs.Graph, marker: gs.Node, source: int, past_length: gs.Tensor
    ) -> gs.Tensor:
        """The positions of the chosen blocks, int64 [1,Hkv,N]."""
        keys, sparse = graph_output(graph, present_block_key(source)), self.sparse
        shape = (1, keys.shape[1], sparse.budget)
        positions = gs.Variable(fresh(graph, "positions"), np.int64, shape)
        sizes = {"block": sparse.block, "recent": sparse.recent, "blocks": [sparse.blocks]}
        inputs = [marker.inputs[0], keys, past_length]
        scale = float(marker.attrs["scale"])
        return call(graph, BLOCK_SELECT, inputs, [positions], scale=scale, **sizes)[0]


_PRESENTS = names.present_key, names.present_value


def _window(graph: gs.Graph, past_length: gs.Tensor, count: int) -> gs.Tensor:
    """The last positions before the chunk, int64 [count]."""
    positions = gs.Variable(fresh(graph, "positions"), np.int64, (count,))
    return node(graph, "Add", [past_length, computed_range(graph, -count, 0)], [positions])[0]


def _part(graph: gs.Graph, past: gs.Tensor, read: gs.Tensor, rows: gs.Tensor) -> gs.Variable:
    """Some positions of a cache [1,Hkv,T,D], and after them the chunk's rows.

    read: positions, of all KV heads [N] or of each [1,Hkv,N]. The cache is read as it was, where
    the chunk's rows are not yet, so that no runtime needs a copy of what is written.
    """
    count = read.shape[-1]
    if len(read.shape) == 1:
        (part,) = node(graph, "Gather", [past, read], axis=2)
    else:
        index = node(graph, "Unsqueeze", [read, int64s(graph, -1)])
        (part,) = node(graph, "GatherND", [past, *index], batch_dims=2)
    both = cache_like(rows, fresh(graph, "part"), count + rows.shape[2])
    return node(graph, "Concat", [part, rows], [both], axis=2)[0]


def _caches(recipe: Recipe, size: Size) -> Sequence[Pass]:
    sparse = sparse_prefill(recipe.options, size.tokens)
    assert sparse, "the kind is built where there is a budget"
    options = recipe.options.of_prompt_cache()
    return (SparsePrefillCache(recipe.geometry.slots, size.capacity, options, sparse),)


class SparseSurgery(MethodSurgery):
    """The graph of chunks inside long prompts, of prefill's trace."""

    kinds: ClassVar = {GRAPH: GraphSurgery(_caches)}


SURGERY = SparseSurgery()
