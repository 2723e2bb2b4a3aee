"""Attention of a prompt's chunk with its KV heads in the place of the batch, all or in groups.

For query heads that share a KV head the kernel copies keys and values once for every query head,
2.1 GB at 131,072 positions and 32 heads of 128. In this form it copies them once for every KV head,
0.5 GB. Groups of KV heads that wait for each other share the memory of their copies.
"""

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import fresh, int64s, node

_FLOAT, _INT64 = 1, 7  # onnx.TensorProto
_NEVER = 3.0e38
"""No finite 16-bit value is above it, and no comparison with NaN is true."""


def fused_by_kv_head(
    graph: gs.Graph, inputs: list[gs.Tensor], is_causal: bool, groups: int = 1
) -> list[gs.Tensor]:
    """Attention of (query [1,H,C,D], key, value [1,Hkv,S,D][, mask]): [1,H,C,D]. Scale 1."""
    query, key, value, *mask = inputs
    batch, heads, rows, head_dim = query.shape
    kv_heads = key.shape[1]
    shape = int64s(graph, kv_heads, heads // kv_heads, rows, head_dim)
    (folded,) = node(graph, "Reshape", [query, shape])
    attributes: dict[str, Any] = {"scale": 1.0, "is_causal": int(is_causal)}
    if groups == 1:
        states = [_as_batch(graph, one) for one in (key, value)]
        attended = node(graph, "Attention", [folded, *states, *mask], **attributes)
    else:
        attended = _in_turn(graph, [folded, key, value, *mask], groups, attributes)
    unfolded = int64s(graph, batch, heads, rows, value.shape[3])
    return node(graph, "Reshape", [*attended, unfolded])


def _as_batch(graph: gs.Graph, states: gs.Tensor, count: int | None = None) -> gs.Tensor:
    """States [1,count,S,D] -> [count,1,S,D]."""
    _, heads, slots, width = states.shape
    shape = int64s(graph, count or heads, 1, slots, width)
    return node(graph, "Reshape", [states, shape])[0]


def _in_turn(
    graph: gs.Graph, inputs: list[gs.Tensor], groups: int, attributes: dict[str, Any]
) -> list[gs.Tensor]:
    """One attention for each group of KV heads. A group's heads are gathered after the last one."""
    folded, key, value, *mask = inputs
    count = key.shape[1] // groups
    parts: list[gs.Tensor] = []
    for group in range(groups):
        own = int64s(graph, *range(group * count, (group + 1) * count))
        places = node(graph, "Add", [own, _zero_after(graph, parts[-1])])[0] if parts else own
        states = [_gathered(graph, one, places, count) for one in (key, value)]
        query = node(graph, "Gather", [folded, own], axis=0)
        parts += node(graph, "Attention", [*query, *states, *mask], **attributes)
    return node(graph, "Concat", parts, axis=0)


def _gathered(graph: gs.Graph, states: gs.Tensor, places: gs.Tensor, count: int) -> gs.Tensor:
    """The KV heads at `places`, as a batch."""
    batch, _, slots, width = states.shape
    heads = gs.Variable(fresh(graph, "heads"), states.dtype, (batch, count, slots, width))
    node(graph, "Gather", [states, places], [heads], axis=1)
    return _as_batch(graph, heads, count)


def _zero_after(graph: gs.Graph, result: gs.Tensor) -> gs.Tensor:
    """0, which is known only once `result` is: the builder orders its kernels by what they read."""
    axes = int64s(graph, 0, 1, 2, 3)
    largest = node(graph, "ReduceMax", [result, axes], keepdims=0)
    wide = node(graph, "Cast", largest, to=_FLOAT)
    never = gs.Constant(fresh(graph, "never"), np.array(_NEVER, np.float32))
    above = node(graph, "Greater", [*wide, never])
    return node(graph, "Cast", above, to=_INT64)[0]
