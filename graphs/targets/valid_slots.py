"""Replaces decode markers of rings by GroupQueryAttention, which reads valid cache slots alone.

The operator can only append a row after the valid ones, and a ring's new row is often not the last.
So TensorScatter writes the new row to its cache slot; GatherND reads the last valid row; and the
operator appends that row to the rows before it, which overwrites the row with itself.

The operator works in place if its cache outputs share the buffers of its cache inputs. Only outputs
of the graph can share buffers: attended.{l}.key|value, which equal present.{l}.key|value. As inner
tensors they are copies of the valid cache slots; a layer that reads another's cache has such.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, node, written
from snapexport.graphs.passes.cache import cache_like
from snapexport.graphs.passes.storage import cast
from snapexport.graphs.targets.group_query_attention import (
    MICROSOFT,
    attended_lengths,
    packed,
    sink_inputs,
)
from snapexport.graphs.targets.sinks import take_sink

_IN_8_BITS = {
    "k_quant_type": "PER_TENSOR",
    "v_quant_type": "PER_TENSOR",
    "kv_cache_bit_width": 8,
}


@dataclass(frozen=True)
class ValidSlots:
    """Replaces every decode marker with valid_only = 1."""

    def apply(self, graph: gs.Graph) -> None:
        ends: dict[tuple[str, int], _End] = {}
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN]:
            if marker.op == CACHE_ATTENTION and marker.attrs["valid_only"]:
                _, _, _, past_key, _, _, valid = marker.inputs[:7]
                alike = valid.name, past_key.shape[1]
                if alike not in ends:
                    ends[alike] = _End(graph, valid, past_key.shape)
                _rewrite(graph, marker, ends[alike])


class _End:
    """The end of the valid cache slots, for layers of as many KV heads that share `valid`."""

    def __init__(self, graph: gs.Graph, valid: gs.Tensor, cache: tuple[int, ...]) -> None:
        """valid: int64 [B]. cache: the shape [B,Hkv,S,D]."""
        batch, kv_heads, slots, _ = cache
        self.lengths = attended_lengths(graph, valid, slots)
        self._graph = graph
        (last,) = node(graph, "Sub", [valid, int64s(graph, 1)])
        (column,) = node(graph, "Reshape", [last, int64s(graph, -1, 1, 1, 1)])
        (self._index,) = node(graph, "Expand", [column, int64s(graph, batch, kv_heads, 1, 1)])

    def last_row(self, cache: gs.Tensor, new: gs.Tensor) -> gs.Variable:
        """The row in a cache's last valid cache slot, in the shape of `new`."""
        row = gs.Variable(fresh(self._graph, "last_row"), cache.dtype, new.shape)
        return node(self._graph, "GatherND", [cache, self._index], [row], batch_dims=2)[0]


def _rewrite(graph: gs.Graph, marker: gs.Node, end: _End) -> None:
    layer, scale, softcap = (marker.attrs[name] for name in ("layer", "scale", "softcap"))
    sink = take_sink(marker)
    (query, *states, past_key, past_value, slot, _), (out, *present) = cut(graph, marker)
    caches = written(graph, [past_key, past_value], states, slot, present)
    rows = [end.last_row(cache, new) for cache, new in zip(caches, states, strict=True)]
    if present:
        again = [
            cache_like(present[0], names.attended_key(layer), past_key.shape[2]),
            cache_like(present[1], names.attended_value(layer), past_value.shape[2]),
        ]
        graph.outputs.extend(again)
    else:
        again = [gs.Variable(fresh(graph, "unused")) for _ in caches]
    attributes = {"scale": scale, "softcap": softcap}
    further = sink_inputs(graph, sink, query) if sink else []
    if past_key.dtype == np.int8:
        rows = [cast(graph, row, query.dtype) for row in rows]
        unused = [gs.Variable.empty() for _ in range(5 - len(further))]
        further = [*further, *unused, *_unit_scales(graph)]
        attributes |= _IN_8_BITS
    batch, heads, _, _ = query.shape
    (attended, *_) = node(
        graph,
        "GroupQueryAttention",
        [
            *(packed(graph, states) for states in (query, *rows)),
            *caches,
            *end.lengths,
            *further,
        ],
        [gs.Variable(fresh(graph, "attended")), *again],
        domain=MICROSOFT,
        num_heads=heads,
        kv_num_heads=past_key.shape[1],
        **attributes,
    )
    node(graph, "Reshape", [attended, int64s(graph, batch, 1, heads, past_value.shape[3])], [out])


def _unit_scales(graph: gs.Graph) -> list[gs.Tensor]:
    """The operator's scales, both 1: passes/storage.py scales outside."""
    return [gs.Constant(fresh(graph, "one"), np.ones(1, np.float32)) for _ in range(2)]
