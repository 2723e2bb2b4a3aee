"""Replaces cache markers by TensorScatter and attention under an explicit mask.

The builder has a fused kernel for some shapes alone (`contract/targets.py`). Attention of other
shapes is composed of single operators.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract.targets import MEASURED_SHAPES
from snapexport.graphs.compression import Scores
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION
from snapexport.graphs.passes.base import cut, fresh, int64s, node
from snapexport.graphs.targets.composed_attention import composed_attention
from snapexport.graphs.targets.visible_slots import VisibleSlots


@dataclass(frozen=True)
class MaskedAttention:
    """Replaces every cache marker of a graph."""

    def apply(self, graph: gs.Graph) -> None:
        masks = VisibleSlots(graph)
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN]:
            if marker.op == CACHE_ATTENTION:
                _with_cache(graph, marker, masks)
            elif marker.op == PROMPT_ATTENTION:
                _whole_prompt(graph, marker, masks)


def _with_cache(graph: gs.Graph, marker: gs.Node, masks: VisibleSlots) -> None:
    scores, window = Scores.of(marker), int(marker.attrs["window"])
    (query, *states, past_key, past_value, slot, valid), (out, *present) = cut(graph, marker)
    for past, new, cache in zip((past_key, past_value), states, present, strict=True):
        node(graph, "TensorScatter", [past, new, slot], [cache], axis=-2, mode="linear")
    mask = masks.mask(valid, query.shape[2], past_key.shape[2], window)
    _attend(graph, [query, *present, mask], out, scores)


def _whole_prompt(graph: gs.Graph, marker: gs.Node, masks: VisibleSlots) -> None:
    """Attention without a past, where TensorRT's is_causal is right: row i is at position i."""
    scores, window = Scores.of(marker), int(marker.attrs["window"])
    qkv, (out,) = cut(graph, marker)
    if window or not _is_fused(qkv, scores):
        length = qkv[0].shape[2]
        _attend(graph, [*qkv, masks.mask(None, length, length, window)], out, scores)
    else:
        _attend(graph, qkv, out, scores, is_causal=True)


def _is_fused(inputs: list[gs.Tensor], scores: Scores) -> bool:
    """Whether the builder has a kernel for query [B,H,C,D] and keys [B,Hkv,S,D]."""
    query, key = inputs[:2]
    (_, _, rows, head_dim), slots = query.shape, key.shape[2]
    value_bytes = 4 if query.dtype == np.float32 else 2
    return not scores.softcap and MEASURED_SHAPES.fits(value_bytes, rows, slots, head_dim)


def _attend(
    graph: gs.Graph,
    inputs: list[gs.Tensor],
    out: gs.Tensor,
    scores: Scores,
    is_causal: bool = False,
) -> None:
    """(query [B,H,C,D], key, value [B,Hkv,S,D], mask) -> [B,C,H,D].

    The queries are multiplied by the scale. TensorRT's own scaling multiplies queries and keys by
    its root, which would be a pass over the whole cache.
    """
    query, *others = inputs
    scaled = [_scaled(graph, query, scores.scale), *others]
    if not _is_fused(inputs, scores):
        states, key, value, mask = scaled
        attended = composed_attention(graph, [(states, key)], value, mask, scores.softcap)
    elif query.shape[2] > 1:
        attended = _fused_by_kv_head(graph, scaled, is_causal)
    else:
        attended = node(graph, "Attention", scaled, scale=1.0)
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def _fused_by_kv_head(graph: gs.Graph, inputs: list[gs.Tensor], is_causal: bool) -> list[gs.Tensor]:
    """Attention of one prompt's chunk, with its KV heads in the place of the batch.

    For query heads that share a KV head the kernel copies keys and values once for every query
    head, 2.1 GB at 131,072 positions and 32 heads of 128. In this form it copies them once for
    every KV head, 0.5 GB.
    """
    query, key, value, *mask = inputs
    batch, heads, rows, head_dim = query.shape
    kv_heads, slots = key.shape[1:3]
    query_shape = int64s(graph, kv_heads, heads // kv_heads, rows, head_dim)
    folded = node(graph, "Reshape", [query, query_shape])
    for states in (key, value):
        shape = int64s(graph, kv_heads, 1, slots, states.shape[3])
        folded += node(graph, "Reshape", [states, shape])
    attended = node(graph, "Attention", folded + mask, scale=1.0, is_causal=int(is_causal))
    unfolded = int64s(graph, batch, heads, rows, value.shape[3])
    return node(graph, "Reshape", [*attended, unfolded])


def _scaled(graph: gs.Graph, query: gs.Tensor, scale: float) -> gs.Tensor:
    constant = gs.Constant(fresh(graph, "scale"), np.array(scale, np.float32))
    (factor,) = node(graph, "CastLike", [constant, query])
    scaled = gs.Variable(fresh(graph, "scaled"), query.dtype, query.shape)
    return node(graph, "Mul", [query, factor], [scaled])[0]
