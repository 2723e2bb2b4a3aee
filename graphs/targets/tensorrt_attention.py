"""Replaces cache markers by TensorScatter and attention under an explicit mask.

The builder has a fused kernel for some shapes only (`contract/targets.py`). Attention of other
shapes is composed of single operators.

For query heads that share a KV head the fused kernel copies keys and values once for every query
head, 2.1 GB at 131,072 positions and 32 heads of 128. With KV heads in the place of the batch it
copies them once for every KV head, 0.5 GB. Heads that share none stay as they are: the builder of
TensorRT for RTX 1.7 has no kernel for one head of each of several batches.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract.targets import MEASURED_SHAPES
from snapexport.graphs.compression import Scores
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION
from snapexport.graphs.passes.base import cut, fresh, int64s, node, written
from snapexport.graphs.targets.attention import VisibleSlots, composed_attention, scale_query
from snapexport.graphs.targets.sinks import SinkSlots, take_sink
from snapexport.graphs.targets.standard_attention import FoldedRows

EXACT_SCALE = 0.25
"""Attention's scale for one query row: its root, 0.5, does not round the keys.

The parser multiplies keys by the root. A product with 1 is removed by the builder, which then
copies the keys' cache onto itself in every step; another product is part of the attention kernel.
"""


@dataclass(frozen=True)
class MaskedAttention:
    """Replaces every cache marker of a graph."""

    def apply(self, graph: gs.Graph) -> None:
        masks, sinks, folded = VisibleSlots(graph), SinkSlots(graph), FoldedRows(graph)
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN]:
            if marker.op == CACHE_ATTENTION:
                _with_cache(graph, marker, masks, sinks, folded)
            elif marker.op == PROMPT_ATTENTION:
                _whole_prompt(graph, marker, masks, sinks)


def _with_cache(
    graph: gs.Graph,
    marker: gs.Node,
    masks: VisibleSlots,
    sinks: SinkSlots,
    folded: FoldedRows,
) -> None:
    scores, window, sink = Scores.of(marker), int(marker.attrs["window"]), take_sink(marker)
    (query, *states, past_key, past_value, slot, valid), (out, *present) = cut(graph, marker)
    caches = written(graph, [past_key, past_value], states, slot, present)
    if any(past_key is output for output in graph.outputs):
        caches = [_read_again(graph, cache) for cache in caches]
    mask = masks.mask(valid, query.shape[2], past_key.shape[2], window)
    inputs = [query, *caches, mask]
    if sink is not None:
        _attend_beside_sink(graph, inputs, out, scores, sinks, sink)
    elif query.shape[0] > 1 and query.shape[2] > 1 and _is_fused(inputs, scores):
        query = scale_query(graph, query, scores.scale)
        if past_key.shape[1] == 1:  # it refuses folded rows of a single head
            attended = node(graph, "Attention", [query, *caches, mask], scale=1.0)
        else:
            attended = folded.attention([query, *caches], mask, scale=1.0)
        node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])
    else:
        _attend(graph, inputs, out, scores)


def _read_again(graph: gs.Graph, cache: gs.Tensor) -> gs.Tensor:
    """A cache that another layer has written, for one more attention to read.

    The builder of TensorRT for RTX 1.7 crashes where two read an updated cache as it is. It removes
    these reshapes, and both kernels read the cache in place.
    """
    batch, kv_heads, *others = cache.shape
    flat = node(graph, "Reshape", [cache, int64s(graph, batch * kv_heads, *others)])
    again = gs.Variable(fresh(graph, "read_again"), cache.dtype, cache.shape)
    return node(graph, "Reshape", [*flat, int64s(graph, *cache.shape)], [again])[0]


def _whole_prompt(graph: gs.Graph, marker: gs.Node, masks: VisibleSlots, sinks: SinkSlots) -> None:
    """Attention without a past, where TensorRT's is_causal is right: row i is at position i."""
    scores, window, sink = Scores.of(marker), int(marker.attrs["window"]), take_sink(marker)
    qkv, (out,) = cut(graph, marker)
    length = qkv[0].shape[2]
    if sink is not None:
        inputs = [*qkv, masks.mask(None, length, length, window)]
        _attend_beside_sink(graph, inputs, out, scores, sinks, sink)
    elif window or not _is_fused(qkv, scores):
        _attend(graph, [*qkv, masks.mask(None, length, length, window)], out, scores)
    else:
        _attend(graph, qkv, out, scores, is_causal=True)


def _is_fused(inputs: list[gs.Tensor], scores: Scores, sink: gs.Tensor | None = None) -> bool:
    """Whether the builder has a kernel for query [B,H,C,D], keys and values [B,Hkv,S,D]."""
    query, key, value = inputs[:3]
    (_, _, rows, width), slots = query.shape, key.shape[2]
    fits = MEASURED_SHAPES.fits if sink is None else MEASURED_SHAPES.fits_with_sink
    value_bytes = 4 if query.dtype == np.float32 else 2
    is_plain = not scores.softcap and value.shape[3] == width
    return is_plain and fits(value_bytes, rows, slots, width)


def _attend(
    graph: gs.Graph,
    inputs: list[gs.Tensor],
    out: gs.Tensor,
    scores: Scores,
    is_causal: bool = False,
) -> None:
    """(query [B,H,C,D], key, value [B,Hkv,S,D], mask) -> [B,C,H,D].

    The queries are multiplied by the scale: TensorRT's own scaling multiplies queries and keys by
    its root, which rounds the keys.
    """
    query, *others = inputs
    if not _is_fused(inputs, scores):
        queries, (key, value, mask) = scale_query(graph, query, scores.scale), others
        attended = composed_attention(graph, [(queries, key)], value, mask, scores.softcap)
    elif query.shape[2] > 1:
        states = [scale_query(graph, query, scores.scale), *others]
        attended = fused_by_kv_head(graph, states, is_causal)
    else:
        states = [scale_query(graph, query, scores.scale / EXACT_SCALE), *others]
        attended = node(graph, "Attention", states, scale=EXACT_SCALE)
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def _attend_beside_sink(
    graph: gs.Graph,
    inputs: list[gs.Tensor],
    out: gs.Tensor,
    scores: Scores,
    sinks: SinkSlots,
    sink: gs.Tensor,
) -> None:
    """The same beside a sink [H], with the mask always given."""
    query, key, value, mask = inputs
    queries = scale_query(graph, query, scores.scale)
    if query.shape[0] == 1 and _is_fused(inputs, scores, sink):
        extended = sinks.extend(queries, key, value, mask, sink)
        wide = fused_by_kv_head(graph, extended, False)
        width = value.shape[3]
        attended = node(graph, "Slice", [*wide, *(int64s(graph, n) for n in (0, width, -1))])
    else:
        attended = composed_attention(graph, [(queries, key)], value, mask, scores.softcap, sink)
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def fused_by_kv_head(graph: gs.Graph, inputs: list[gs.Tensor], is_causal: bool) -> list[gs.Tensor]:
    """Attention of (query [1,H,C,D], key, value [1,Hkv,S,D][, mask]): [1,H,C,D]. Scale 1."""
    query, key, value, *mask = inputs
    batch, heads, rows, head_dim = query.shape
    kv_heads = key.shape[1]
    if heads == kv_heads:
        return node(graph, "Attention", inputs, scale=1.0, is_causal=int(is_causal))
    shape = int64s(graph, kv_heads, heads // kv_heads, rows, head_dim)
    (folded,) = node(graph, "Reshape", [query, shape])
    states = [_as_batch(graph, state) for state in (key, value)]
    read = [folded, *states, *mask]
    attended = node(graph, "Attention", read, scale=1.0, is_causal=int(is_causal))
    unfolded = int64s(graph, batch, heads, rows, value.shape[3])
    return node(graph, "Reshape", [*attended, unfolded])


def _as_batch(graph: gs.Graph, states: gs.Tensor) -> gs.Tensor:
    """States [1,Hkv,S,D] -> [Hkv,1,S,D]."""
    _, heads, slots, width = states.shape
    return node(graph, "Reshape", [states, int64s(graph, heads, 1, slots, width)])[0]
