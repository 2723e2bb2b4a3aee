"""Replaces cache markers by ONNX Runtime's GroupQueryAttention.

The operator writes in place, never forms the [C,T] scores, and costs time in proportion to the
valid length, not to the cache. It refuses several rows after a past in a batch of several, values
of another width than keys, and widths that are not a multiple of 8; standard_attention.py handles
them.

It can only append a row after the valid ones, and a ring's new row is often not the last. So for a
ring TensorScatter writes the new row to its cache slot; Gather reads the last valid row; and the
operator appends that row to the rows before it, which overwrites the row with itself. The rows of a
cache are numbered over batch slots and heads: a GPU's GatherND starts a second kernel.

The operator works in place if its cache outputs share the buffers of its cache inputs. Only outputs
of the graph can share buffers: attended.{l}.key|value, which equal present.{l}.key|value. As inner
tensors they are copies of the valid cache slots; a layer that reads another's cache has such.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.targets import FUSED_WIDTH
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION
from snapexport.graphs.passes.base import MICROSOFT, cut, fresh, int64s, node, written
from snapexport.graphs.passes.cache import cache_like
from snapexport.graphs.passes.storage import cast
from snapexport.graphs.targets.sinks import like, take_sink

_INT32 = 6  # onnx.TensorProto.INT32
_NO_WINDOW = -1


@dataclass(frozen=True)
class GroupQueryAttention:
    """Prefill chunks, whole prompts, and the full cache's decode."""

    def apply(self, graph: gs.Graph) -> None:
        lengths: dict[str, list[gs.Tensor]] = {}
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN and _is_taken(n)]:
            if marker.op == CACHE_ATTENTION and marker.attrs["appends"]:
                valid = marker.inputs[6]
                if valid.name not in lengths:
                    slots = marker.inputs[3].shape[2]
                    lengths[valid.name] = attended_lengths(graph, valid, slots)
                self._rewrite(graph, marker, lengths[valid.name])
            elif marker.op == PROMPT_ATTENTION:
                self._rewrite(graph, marker, _whole_prompt(graph, marker.inputs[0].shape[2]))

    def _rewrite(self, graph: gs.Graph, marker: gs.Node, lengths: list[gs.Tensor]) -> None:
        window, sink = marker.attrs["window"], take_sink(marker)
        (query, key, value, *cache), (out, *present) = cut(graph, marker)
        batch, heads, chunk, _ = query.shape
        past = cache[:2] or [gs.Variable.empty(), gs.Variable.empty()]
        if not present and (cache or query.dtype != np.float32):
            # The GPU kernel always writes a cache, and the CPU's where it reads one.
            present = [gs.Variable(fresh(graph, "unused")) for _ in range(2)]
        attended = gs.Variable(fresh(graph, "attended"))
        node(
            graph,
            "GroupQueryAttention",
            [
                *(pack_heads(graph, states) for states in (query, key, value)),
                *past,
                *lengths,
                *(sink_inputs(graph, sink, query) if sink else []),
            ],
            [attended, *present],
            domain=MICROSOFT,
            num_heads=heads,
            kv_num_heads=key.shape[1],
            scale=marker.attrs["scale"],
            softcap=marker.attrs["softcap"],
            # Both count the row's own position.
            local_window_size=window or _NO_WINDOW,
        )
        shape = int64s(graph, batch, chunk, heads, value.shape[3])
        node(graph, "Reshape", [attended, shape], [out])


def _is_taken(marker: gs.Node) -> bool:
    (batch, _, rows, width), value = marker.inputs[0].shape, marker.inputs[2]
    fits = value.shape[3] == width and width % FUSED_WIDTH == 0
    return bool((batch == 1 or rows == 1) and fits)


def pack_heads(graph: gs.Graph, states: gs.Tensor) -> gs.Tensor:
    """[B,H,C,D] -> [B,C,H*D]."""
    batch, heads, chunk, head_dim = states.shape
    rows = node(graph, "Transpose", [states], perm=[0, 2, 1, 3])
    shape = int64s(graph, batch, chunk, heads * head_dim)
    return node(graph, "Reshape", [*rows, shape])[0]


def sink_inputs(graph: gs.Graph, sink: gs.Tensor, query: gs.Tensor) -> list[gs.Tensor]:
    """Four unused inputs and the operator's head_sink."""
    return [*(gs.Variable.empty() for _ in range(4)), like(graph, sink, query)]


def attended_lengths(graph: gs.Graph, valid: gs.Tensor, slots: int) -> list[gs.Tensor]:
    """valid_length [B] -> the operator's seqlens_k (int32 [B]) and total_sequence_length.

    total_sequence_length is a constant, the upper bound of seqlens_k: the operator reads it on the
    host. onnxruntime-gpu 1.31 does not wait there for what the GPU calculates, and the operator
    would write and attend to wrong positions; waiting would exclude CUDA graphs.
    """
    total = gs.Constant(fresh(graph, "total_sequence_length"), np.array(slots, np.int32))
    last = node(graph, "Sub", [valid, int64s(graph, 1)])
    return [*node(graph, "Cast", last, to=_INT32), total]


def _whole_prompt(graph: gs.Graph, length: int) -> list[gs.Tensor]:
    return [
        gs.Constant(fresh(graph, "seqlens_k"), np.array([length - 1], np.int32)),
        gs.Constant(fresh(graph, "total_sequence_length"), np.array(length, np.int32)),
    ]


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
                _rewrite_ring(graph, marker, ends[alike])


class _End:
    """The end of the valid cache slots, for layers of as many KV heads that share `valid`."""

    def __init__(self, graph: gs.Graph, valid: gs.Tensor, cache: tuple[int, ...]) -> None:
        """valid: int64 [B]. cache: the shape [B,Hkv,S,D]."""
        batch, kv_heads, slots, _ = cache
        self.lengths = attended_lengths(graph, valid, slots)
        self._graph = graph
        heads = np.arange(batch * kv_heads, dtype=np.int64).reshape(batch, kv_heads, 1) * slots
        firsts = gs.Constant(fresh(graph, "first_rows"), heads - 1)
        (column,) = node(graph, "Reshape", [valid, int64s(graph, -1, 1, 1)])
        (self._index,) = node(graph, "Add", [column, firsts])

    def last_row(self, cache: gs.Tensor, new: gs.Tensor) -> gs.Variable:
        """The row in a cache's last valid cache slot, in the shape of `new`."""
        (rows,) = node(self._graph, "Reshape", [cache, int64s(self._graph, -1, new.shape[3])])
        row = gs.Variable(fresh(self._graph, "last_row"), cache.dtype, new.shape)
        return node(self._graph, "Gather", [rows, self._index], [row], axis=0)[0]


def _rewrite_ring(graph: gs.Graph, marker: gs.Node, end: _End) -> None:
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
            *(pack_heads(graph, states) for states in (query, *rows)),
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
