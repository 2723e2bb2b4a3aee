"""Writes linear attention with a state as standard operators.

One node reads the past state, and what it writes lies elsewhere: the present state may take the
past one's buffer in a runtime that runs nodes in turn.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import node
from snapexport.graphs.targets.chunk_products import Nodes
from snapexport.graphs.targets.chunked_recurrence import LARGEST, ChunkedRecurrence
from snapexport.graphs.targets.composed_attention import scaled
from snapexport.graphs.targets.linear_parts import LinearParts, linear_attentions


@dataclass(frozen=True)
class ComposedLinearAttention:
    """Replaces every marker of linear attention.

    rows: most tokens of a sub-chunk with a beta. A CPU is faster with fewer: the triangular system
    grows with their square.
    """

    rows: int = LARGEST

    def apply(self, graph: gs.Graph) -> None:
        nodes = Nodes(graph)
        for parts in linear_attentions(graph):
            if parts.tokens > 1:
                rows = LARGEST if parts.beta is None else self.rows
                ChunkedRecurrence(nodes, parts, rows).write()
            else:
                _step(nodes, parts)


def _step(nodes: Nodes, parts: LinearParts) -> None:
    """One token: rows [B,H,1,d], and columns [B,H,d,1] for the outer product and the decay."""
    as_rows = nodes.ints(parts.batch, parts.heads, 1, -1)
    as_columns = nodes.ints(parts.batch, parts.heads, -1, 1)
    queries = parts.by_value_head(nodes.graph, scaled(nodes.graph, parts.query, parts.scale))
    keys, value = (
        parts.by_value_head(nodes.graph, parts.key),
        nodes("Reshape", parts.value, as_rows),
    )
    decay = nodes("Exp", nodes("Reshape", parts.decay, as_columns))
    state = nodes("Mul", parts.past, decay)
    if parts.beta is not None:
        known = nodes("MatMul", nodes("Reshape", keys, as_rows), state)
        value = nodes("Mul", nodes("Sub", value, known), nodes("Reshape", parts.beta, as_columns))
    added = nodes("Mul", nodes("Reshape", keys, as_columns), value)
    node(nodes.graph, "Add", [state, added], [parts.present])
    read = nodes("MatMul", nodes("Reshape", queries, as_rows), parts.present)
    shape = nodes.ints(parts.batch, 1, parts.heads, parts.value_dim)
    node(nodes.graph, "Reshape", [read, shape], [parts.output])
