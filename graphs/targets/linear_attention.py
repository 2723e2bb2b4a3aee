"""Replaces linear attention by ONNX Runtime's LinearAttention, which may update states in place.

GatedDeltaNet takes grouped heads as they are, but its kernel for a CPU was five to ten times as
slow, and gave other outputs than its schema says (1.32).
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import fresh, int64s, node
from snapexport.graphs.targets.group_query_attention import MICROSOFT
from snapexport.graphs.targets.linear_parts import LinearParts, linear_attentions


@dataclass(frozen=True)
class LinearAttention:
    """Replaces every marker of linear attention."""

    def apply(self, graph: gs.Graph) -> None:
        for parts in linear_attentions(graph):
            _replace(graph, parts)


def _replace(graph: gs.Graph, parts: LinearParts) -> None:
    queries, keys = (parts.by_value_head(graph, one) for one in (parts.query, parts.key))
    decay = _packed(graph, parts, parts.decay) if parts.by_channel else parts.decay
    inputs = [_packed(graph, parts, one) for one in (queries, keys, parts.value)]
    inputs += [parts.past, decay, *([] if parts.beta is None else [parts.beta])]
    attended = gs.Variable(fresh(graph, "attended"))
    node(
        graph,
        "LinearAttention",
        inputs,
        [attended, parts.present],
        domain=MICROSOFT,
        q_num_heads=parts.heads,
        kv_num_heads=parts.heads,
        scale=parts.scale,
        update_rule="gated" if parts.beta is None else "gated_delta",
    )
    shape = (parts.batch, parts.tokens, parts.heads, parts.value_dim)
    node(graph, "Reshape", [attended, int64s(graph, *shape)], [parts.output])


def _packed(graph: gs.Graph, parts: LinearParts, states: gs.Tensor) -> gs.Tensor:
    """[B,C,H,d] as [B,C,H*d]."""
    return node(graph, "Reshape", [states, int64s(graph, parts.batch, parts.tokens, -1)])[0]
