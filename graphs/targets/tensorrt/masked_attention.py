"""Replaces cache markers by TensorScatter and attention under an explicit mask."""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.compression import Scores
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION
from snapexport.graphs.passes.base import cut, fresh, node
from snapexport.graphs.targets.tensorrt.capped_attention import capped_attention
from snapexport.graphs.targets.tensorrt.visible_slots import VisibleSlots


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
    if window or scores.softcap:
        length = qkv[0].shape[2]
        _attend(graph, [*qkv, masks.mask(None, length, length, window)], out, scores)
    else:
        _attend(graph, qkv, out, scores, is_causal=True)


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
    if scores.softcap:
        attended = capped_attention(graph, scaled, scores.softcap)
    else:
        attended = node(graph, "Attention", scaled, scale=1.0, is_causal=int(is_causal))
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def _scaled(graph: gs.Graph, query: gs.Tensor, scale: float) -> gs.Tensor:
    constant = gs.Constant(fresh(graph, "scale"), np.array(scale, np.float32))
    (factor,) = node(graph, "CastLike", [constant, query])
    scaled = gs.Variable(fresh(graph, "scaled"), query.dtype, query.shape)
    return node(graph, "Mul", [query, factor], [scaled])[0]
