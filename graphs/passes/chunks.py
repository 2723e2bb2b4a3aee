"""Attention in chunks (Llama 4): a row at position p sees the positions from p - p mod c to p.

Whole caches hold more. No operator takes such a mask in another form, so that markers get one, and
read only the positions that a prompt's chunk may see.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import (
    computed_range,
    cut,
    fresh,
    graph_input,
    int64s,
    node,
    written,
)
from snapexport.graphs.passes.cache import add_caches, attention_attributes, cache_like


def chunk_of(marker: gs.Node, positions: int) -> int:
    """The chunk c of a traced attention; 0 if it hides none of the positions."""
    chunk = int(marker.attrs.get("chunk", 0))
    return chunk if chunk < positions else 0


def chunk_mask(
    graph: gs.Graph, rows: gs.Tensor, columns: gs.Tensor, chunk: int, shape: tuple[int, ...]
) -> gs.Variable:
    """Bool of that shape, true where seen. rows, columns: int64, the positions of both."""
    mask = gs.Variable(fresh(graph, "in_chunk"), np.bool_, shape)
    is_past = node(graph, "LessOrEqual", [columns, rows])
    return node(graph, "And", [*is_past, since_chunk(graph, rows, columns, chunk)], [mask])[0]


def since_chunk(graph: gs.Graph, rows: gs.Tensor, columns: gs.Tensor, chunk: int) -> gs.Tensor:
    """Bool: whether a column is not before the row's chunk."""
    offset = node(graph, "Mod", [rows, int64s(graph, chunk)])
    begun = node(graph, "Sub", [rows, *offset])
    return node(graph, "GreaterOrEqual", [columns, *begun])[0]


def column_of(graph: gs.Graph, positions: gs.Tensor) -> gs.Tensor:
    """Positions [B,C] as rows of a mask: [B,1,C,1]."""
    return node(graph, "Unsqueeze", [positions, int64s(graph, 1, 3)])[0]


@dataclass(frozen=True)
class Span:
    """The part of a full-length cache that a prompt's chunk may see.

    slot: int64 [1], of the chunk's first row. index: int64 [n], the positions; None for all of
    them. mask: bool [1,1,C,n].
    """

    slot: gs.Tensor
    index: gs.Tensor | None
    mask: gs.Tensor

    @classmethod
    def of(
        cls, graph: gs.Graph, past_length: gs.Tensor, tokens: int, slots: int, chunk: int
    ) -> "Span":
        """The span of a chunk of `tokens` in a cache of `slots` positions."""
        (flat,) = node(graph, "Add", [past_length, computed_range(graph, 0, tokens)])
        (batched,) = node(graph, "Unsqueeze", [flat, int64s(graph, 0)])
        rows, count = column_of(graph, batched), min(slots, chunk + tokens)
        columns, index = computed_range(graph, 0, count), None
        if count < slots:
            (over,) = node(graph, "Add", [past_length, int64s(graph, tokens - count)])
            (first,) = node(graph, "Max", [over, int64s(graph, 0)])
            index = gs.Variable(fresh(graph, "span"), np.int64, (count,))
            (columns,) = node(graph, "Add", [first, columns], [index])
        mask = chunk_mask(graph, rows, columns, chunk, (1, 1, tokens, count))
        return cls(past_length, index, mask)

    def read(self, graph: gs.Graph, cache: gs.Tensor) -> gs.Tensor:
        """The part of a cache [1,Hkv,T,D]: [1,Hkv,n,D]."""
        if self.index is None:
            return cache
        part = cache_like(cache, fresh(graph, "part"), self.index.shape[0])
        return node(graph, "Gather", [cache, self.index], [part], axis=2)[0]


def write_before_chunks(
    graph: gs.Graph, layer: int, marker: gs.Node, slots: int, span: Span
) -> list[gs.Tensor]:
    """Write a traced attention's key and value into a cache of `slots` positions.

    Returns what `attend_in_chunks` reads, there and in layers that read the same cache.
    """
    key, value = marker.inputs[1:3]
    past, present = add_caches(graph, layer, key, value, slots)
    caches = written(graph, past, [key, value], span.slot, present)
    return [key, value, *(span.read(graph, cache) for cache in caches), span.slot, span.mask]


def attend_in_chunks(graph: gs.Graph, marker: gs.Node, read: list[gs.Tensor]) -> None:
    """Replace a traced attention by one over a span of a cache."""
    attributes = attention_attributes(marker, 0)
    (query, _, _, *more), (out,) = cut(graph, marker)
    _attend(graph, [query, *read, *more], out, attributes)


def attend_to_prompt_in_chunks(
    graph: gs.Graph,
    inputs: list[gs.Tensor],
    out: gs.Tensor,
    chunk: int,
    attributes: dict[str, object],
) -> None:
    """Append attention inside of a whole prompt, which no cache holds."""
    query, key, value, *more = inputs
    length = query.shape[2]
    columns = computed_range(graph, 0, length)
    (batched,) = node(graph, "Unsqueeze", [columns, int64s(graph, 0)])
    shape = (1, 1, length, length)
    mask = chunk_mask(graph, column_of(graph, batched), columns, chunk, shape)
    _attend(graph, [query, key, value, key, value, int64s(graph, 0), mask, *more], out, attributes)


def _attend(
    graph: gs.Graph, inputs: list[gs.Tensor], out: gs.Tensor, attributes: dict[str, object]
) -> None:
    attributes = attributes | {"appends": 0, "valid_only": 0}
    node(graph, CACHE_ATTENTION, inputs, [out], domain=CACHE_DOMAIN, **attributes)


def taken_tokens(graph: gs.Graph) -> gs.Tensor:
    """Int64 [1], a chunk's valid tokens that have a position, of a graph with these inputs."""
    positions = graph_input(graph, names.POSITION_IDS)
    row = computed_range(graph, 0, positions.shape[1])
    (flat,) = node(graph, "Reshape", [positions, int64s(graph, -1)])
    (has_position,) = node(graph, "GreaterOrEqual", [flat, int64s(graph, 0)])
    (is_valid,) = node(graph, "Less", [row, graph_input(graph, names.CHUNK_LENGTH)])
    (is_taken,) = node(graph, "And", [has_position, is_valid])
    (counted,) = node(graph, "Cast", [is_taken], to=_INT64)
    return node(graph, "ReduceSum", [counted, int64s(graph, 0)])[0]


_INT64 = 7  # onnx.TensorProto.INT64
