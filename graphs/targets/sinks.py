"""Adds attention's learned sinks: a further score of each head (gpt-oss), beside those of the keys.

A row's weights over its keys and its head's sink add up to 1, and the sink's share goes to no
value. Such a sink is not a position and has no cache slot, unlike the L_sink first positions.

ONNX's Attention has no sinks: for runtimes of standard operators attention beside them is composed.
ONNX Runtime's own operator takes them, and leaves only the rings that are read whole.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from snapexport.contract.targets import SINK_CHANNELS
from snapexport.graphs.compression import Scores
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, EXPERTS, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, has_sink, int64s, node, written
from snapexport.graphs.targets.attention import VisibleSlots, composed_attention, scale_query


def take_sink(marker: gs.Node) -> gs.Tensor | None:
    """Remove the sink [H] from a cache marker's inputs, if it has one."""
    return marker.inputs.pop() if has_sink(marker) else None


def like(graph: gs.Graph, sink: gs.Tensor, states: gs.Tensor) -> gs.Tensor:
    """The sink in the type of `states`: a cache may have fewer bits than the model."""
    if sink.dtype == states.dtype:
        return sink
    return node(graph, "CastLike", [sink, states], [gs.Variable(fresh(graph, "sink"))])[0]


class SinkSlots:
    """Puts sinks into attention operators without sinks, each as one more cache slot.

    The slot's key is 1 in a channel where all other keys are 0 and where the queries are the sink,
    so its score is the sink. Its value is 0. Keys and values are copied, with SINK_CHANNELS more
    channels, which takes far less memory than a chunk's scores.
    """

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._masks: dict[str, gs.Tensor] = {}

    def extend(
        self, query: gs.Tensor, key: gs.Tensor, value: gs.Tensor, mask: gs.Tensor, sink: gs.Tensor
    ) -> list[gs.Tensor]:
        """Inputs [1,H,C,D+8], [1,Hkv,S+1,D+8] twice and bool [1,1,C,S+1] of attention, scale 1.

        Its output has D+8 channels; the last 8 are 0.
        """
        queries = self._queries(query, like(self._graph, sink, query))
        keys = self._with_slot(key, _one(query.shape[3], query.shape[3] + SINK_CHANNELS))
        values = self._with_slot(value, np.zeros(value.shape[3] + SINK_CHANNELS, np.float32))
        return [queries, keys, values, self._mask(mask, query.shape[2])]

    def _queries(self, query: gs.Tensor, sink: gs.Tensor) -> gs.Tensor:
        graph, (batch, heads, rows, width) = self._graph, query.shape
        (column,) = node(graph, "Reshape", [sink, int64s(graph, 1, heads, 1, 1)])
        first = self._constant(_one(0, SINK_CHANNELS), query)
        (channels,) = node(graph, "Mul", [column, first])
        shape = int64s(graph, batch, heads, rows, SINK_CHANNELS)
        expanded = node(graph, "Expand", [channels, shape])
        wide = (batch, heads, rows, width + SINK_CHANNELS)
        queries = gs.Variable(fresh(graph, "query"), query.dtype, wide)
        return node(graph, "Concat", [query, *expanded], [queries], axis=-1)[0]

    def _with_slot(self, states: gs.Tensor, row: NDArray[np.float32]) -> gs.Tensor:
        """States [1,Hkv,S,D] -> [1,Hkv,S+1,D+8], the last cache slot being `row`."""
        graph, (batch, kv_heads, slots, width) = self._graph, states.shape
        after = int64s(graph, *[0] * 7, SINK_CHANNELS)
        padded = node(graph, "Pad", [states, after])
        shape = int64s(graph, batch, kv_heads, 1, len(row))
        rows = node(graph, "Expand", [self._constant(row, states), shape])
        wide = (batch, kv_heads, slots + 1, width + SINK_CHANNELS)
        out = gs.Variable(fresh(graph, "with_sink"), states.dtype, wide)
        return node(graph, "Concat", [*padded, *rows], [out], axis=2)[0]

    def _mask(self, mask: gs.Tensor, rows: int) -> gs.Tensor:
        """The mask with one more column, all true. Layers share it, as they share the mask."""
        if mask.name not in self._masks:
            true = gs.Constant(fresh(self._graph, "true"), np.ones((1, 1, 1, 1), np.bool_))
            column = node(self._graph, "Expand", [true, int64s(self._graph, 1, 1, rows, 1)])
            (self._masks[mask.name],) = node(self._graph, "Concat", [mask, *column], axis=-1)
        return self._masks[mask.name]

    def _constant(self, values: NDArray[np.float32], states: gs.Tensor) -> gs.Tensor:
        constant = gs.Constant(fresh(self._graph, "const"), values)
        return node(self._graph, "CastLike", [constant, states])[0]


def _one(at: int, count: int) -> NDArray[np.float32]:
    """Zeros, with a 1 at one place."""
    values = np.zeros(count, np.float32)
    values[at] = 1
    return values


@dataclass(frozen=True)
class SinkAttention:
    """Replaces every marker with a sink that earlier passes left. Others stay."""

    def apply(self, graph: gs.Graph) -> None:
        masks = VisibleSlots(graph)
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN]:
            sink = take_sink(marker)
            if sink is not None:
                _rewrite(graph, marker, masks, sink)


@dataclass(frozen=True)
class AttentionBesideExperts:
    """Replaces every marker of a model with experts (MoE), for compilers.

    The builder of TensorRT for RTX 1.7 takes its fused kernel for some graphs with experts, and
    refuses those of real sizes.
    """

    def apply(self, graph: gs.Graph) -> None:
        if not any((n.domain, n.op) == (TRACE_DOMAIN, EXPERTS) for n in graph.nodes):
            return
        masks = VisibleSlots(graph)
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN]:
            _rewrite(graph, marker, masks, take_sink(marker))


def _rewrite(graph: gs.Graph, marker: gs.Node, masks: VisibleSlots, sink: gs.Tensor | None) -> None:
    scores, window = Scores.of(marker), int(marker.attrs["window"])
    has_cache = marker.op == CACHE_ATTENTION
    (query, key, value, *place), (out, *present) = cut(graph, marker)
    rows, slots, valid = query.shape[2], key.shape[2], None
    if has_cache:
        past_key, past_value, slot, valid = place
        key, value = written(graph, [past_key, past_value], [key, value], slot, present)
        slots = past_key.shape[2]
    mask = masks.mask(valid, rows, slots, window)
    products = [(scale_query(graph, query, scores.scale), key)]
    attended = composed_attention(graph, products, value, mask, scores.softcap, sink)
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])
