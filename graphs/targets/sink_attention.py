"""Replaces cache markers by TensorScatter and composed attention: beside sinks, or experts.

For runtimes of standard operators: ONNX's Attention has no sinks. ONNX Runtime's own operator takes
them, and is left only the rings that are read whole.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.compression import Scores
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, EXPERTS, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, node, written
from snapexport.graphs.targets.composed_attention import composed_attention, scaled
from snapexport.graphs.targets.sinks import take_sink
from snapexport.graphs.targets.visible_slots import VisibleSlots


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
    products = [(scaled(graph, query, scores.scale), key)]
    attended = composed_attention(graph, products, value, mask, scores.softcap, sink)
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])
