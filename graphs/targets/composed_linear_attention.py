"""Writes linear attention with a state as standard operators.

One node reads the past state, and what it writes lies elsewhere: the present state may take the
past one's buffer in a runtime that runs nodes in turn.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import int64s, node
from snapexport.graphs.targets.chunk_products import Nodes
from snapexport.graphs.targets.chunked_recurrence import ChunkedRecurrence
from snapexport.graphs.targets.composed_attention import scaled
from snapexport.graphs.targets.linear_parts import LinearParts, linear_attentions


@dataclass(frozen=True)
class ComposedLinearAttention:
    """Replaces every marker of linear attention."""

    def apply(self, graph: gs.Graph) -> None:
        nodes = Nodes(graph)
        for parts in linear_attentions(graph):
            if parts.tokens > 1:
                ChunkedRecurrence(nodes, parts).write()
            else:
                _step(graph, parts)


def _step(graph: gs.Graph, parts: LinearParts) -> None:
    """One token. key: a row [B,H,1,dk]. Its column makes the outer product."""
    rows = int64s(graph, parts.batch, parts.heads, 1, -1)
    columns = int64s(graph, parts.batch, parts.heads, -1, 1)
    scaled_query = scaled(graph, parts.query, parts.scale)
    queries, keys = (parts.by_value_head(graph, one) for one in (scaled_query, parts.key))
    query, key, value = (
        node(graph, "Reshape", [one, rows])[0] for one in (queries, keys, parts.value)
    )
    (decay,) = node(graph, "Exp", node(graph, "Reshape", [parts.decay, columns]))
    (state,) = node(graph, "Mul", [parts.past, decay])
    if parts.beta is not None:
        (beta,) = node(graph, "Reshape", [parts.beta, columns])
        (error,) = node(graph, "Sub", [value, *node(graph, "MatMul", [key, state])])
        (value,) = node(graph, "Mul", [error, beta])
    (column,) = node(graph, "Reshape", [keys, columns])
    node(graph, "Add", [state, *node(graph, "Mul", [column, value])], [parts.present])
    (read,) = node(graph, "MatMul", [query, parts.present])
    shape = int64s(graph, parts.batch, 1, parts.heads, parts.value_dim)
    node(graph, "Reshape", [read, shape], [parts.output])
