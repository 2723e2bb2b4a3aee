"""Chooses the form of multi-head latent attention (MLA) in a graph (contract/latents.py)."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract.model_facts import LatentSizes
from snapexport.graphs.markers import ATTENTION, LATENT_ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, node

ABSORBED, EXPANDED = 1, 2
"""Values of a marker's attribute `latent`."""


@dataclass(frozen=True)
class Latents:
    """Replaces the latent markers of a trace by attention markers. The first pass of a graph.

    absorb: whatever the number of rows.
    """

    absorb: bool = False

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if _is_latent(n)]:
            attributes = {"layer": marker.attrs["layer"], "scale": marker.attrs["scale"]}
            attributes |= {"window": 0, "softcap": 0.0}
            inputs, (out,) = cut(graph, marker)
            if not self.absorb and _expands(inputs):
                _mark(graph, inputs, out, attributes | {"latent": EXPANDED})
                continue
            query, c_kv, k_rope, key_up, value_up = inputs
            batch, heads, rows, _ = query.shape
            shape = (batch, rows, heads, c_kv.shape[3])
            attended = gs.Variable(fresh(graph, "attended"), query.dtype, shape)
            states = [absorbed(graph, query, key_up), c_kv, k_rope]
            _mark(graph, states, attended, attributes | {"latent": ABSORBED})
            (by_head,) = node(graph, "Transpose", [attended], perm=[2, 0, 1, 3])
            values = _by_head(graph, by_head, value_up, (batch, rows))
            node(graph, "Transpose", [values], [out], perm=[1, 2, 0, 3])


def _is_latent(marker: gs.Node) -> bool:
    return (marker.domain, marker.op) == (TRACE_DOMAIN, LATENT_ATTENTION)


def _mark(
    graph: gs.Graph, inputs: list[gs.Tensor], out: gs.Tensor, attributes: dict[str, object]
) -> None:
    node(graph, ATTENTION, inputs, [out], domain=TRACE_DOMAIN, **attributes)


def _expands(inputs: list[gs.Tensor]) -> bool:
    query, c_kv, k_rope, _, value_up = inputs
    rank, rope, head, value = (t.shape[-1] for t in (c_kv, k_rope, query, value_up))
    return LatentSizes(rank, rope, head - rope, value).expands(query.shape[2])


def absorbed(graph: gs.Graph, query: gs.Tensor, key_up: gs.Tensor) -> gs.Variable:
    """Queries [B,H,C,n+d] in the latents' space: [B,H,C,r+d]. key_up: [H,n,r]."""
    batch, heads, rows, width = query.shape
    _, nope, rank = key_up.shape
    (q_nope,) = node(graph, "Slice", [query, *(int64s(graph, n) for n in (0, nope, -1))])
    (q_rope,) = node(graph, "Slice", [query, *(int64s(graph, n) for n in (nope, width, -1))])
    (by_head,) = node(graph, "Transpose", [q_nope], perm=[1, 0, 2, 3])
    latent = _by_head(graph, by_head, key_up, (batch, rows))
    (first,) = node(graph, "Transpose", [latent], perm=[1, 0, 2, 3])
    shape = (batch, heads, rows, rank + width - nope)
    whole = gs.Variable(fresh(graph, "absorbed"), query.dtype, shape)
    return node(graph, "Concat", [first, q_rope], [whole], axis=-1)[0]


def _by_head(
    graph: gs.Graph, states: gs.Tensor, matrices: gs.Tensor, rows: tuple[int, int]
) -> gs.Tensor:
    """Multiply each head's rows by its matrix: [H,B,C,n] and [H,n,m] -> [H,B,C,m].

    The heads come first, so that all batch slots share one reading of a matrix.
    """
    heads, width, outputs = matrices.shape
    flat = node(graph, "Reshape", [states, int64s(graph, heads, -1, width)])
    products = node(graph, "MatMul", [*flat, matrices])
    return node(graph, "Reshape", [*products, int64s(graph, heads, *rows, outputs)])[0]
