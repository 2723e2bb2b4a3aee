"""Reads markers of linear attention, and replaces them by ONNX Runtime's LinearAttention.

The operator may update states in place. GatedDeltaNet takes grouped heads as they are, but its
kernel for a CPU was five to ten times as slow, and gave other outputs than its schema says (1.32).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.markers import CACHE_DOMAIN, LINEAR_ATTENTION
from snapexport.graphs.passes.base import MICROSOFT, cut, fresh, int64s, node


@dataclass(eq=False)
class LinearParts:
    """Inputs and outputs, as `graphs/markers.py` names them. beta: None without one.

    batch, tokens, groups, heads, key_dim, value_dim: B, C, G, H, dk, dv.
    """

    query: gs.Tensor
    key: gs.Tensor
    value: gs.Tensor
    decay: gs.Tensor
    beta: gs.Tensor | None
    past: gs.Tensor
    output: gs.Tensor
    present: gs.Tensor
    scale: float

    def __post_init__(self) -> None:
        sizes: tuple[int, ...] = (*self.query.shape, *self.value.shape[2:])
        self.batch, self.tokens, self.groups, self.key_dim, self.heads, self.value_dim = sizes

    @property
    def by_channel(self) -> bool:
        """Whether each row of a state has a decay of its own."""
        return len(self.decay.shape) == 4

    def by_value_head(self, graph: gs.Graph, states: gs.Tensor) -> gs.Tensor:
        """Queries or keys, [B,C,G,dk], as [B,C,H,dk]: each value head's copy."""
        if self.groups == self.heads:
            return states
        each = self.heads // self.groups
        shape = (self.batch, self.tokens, self.groups)
        (apart,) = node(graph, "Reshape", [states, int64s(graph, *shape, 1, self.key_dim)])
        (copied,) = node(graph, "Expand", [apart, int64s(graph, *shape, each, self.key_dim)])
        whole = int64s(graph, *shape[:2], self.heads, self.key_dim)
        return node(graph, "Reshape", [copied, whole])[0]


def linear_attentions(graph: gs.Graph) -> Iterator[LinearParts]:
    """The parts of each marker, which is cut from the graph."""
    found = [n for n in graph.nodes if (n.domain, n.op) == (CACHE_DOMAIN, LINEAR_ATTENTION)]
    for marker in found:
        scale = float(marker.attrs["scale"])
        (query, key, value, decay, beta, past), (output, present) = cut(graph, marker)
        given = None if beta.is_empty() else beta
        yield LinearParts(query, key, value, decay, given, past, output, present, scale)


@dataclass(frozen=True)
class LinearAttention:
    """Replaces every marker of linear attention."""

    def apply(self, graph: gs.Graph) -> None:
        for parts in linear_attentions(graph):
            _replace(graph, parts)


def _replace(graph: gs.Graph, parts: LinearParts) -> None:
    queries, keys = (parts.by_value_head(graph, one) for one in (parts.query, parts.key))
    decay = _pack(graph, parts, parts.decay) if parts.by_channel else parts.decay
    inputs = [_pack(graph, parts, one) for one in (queries, keys, parts.value)]
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


def _pack(graph: gs.Graph, parts: LinearParts, states: gs.Tensor) -> gs.Tensor:
    """[B,C,H,d] as [B,C,H*d]."""
    return node(graph, "Reshape", [states, int64s(graph, parts.batch, parts.tokens, -1)])[0]
