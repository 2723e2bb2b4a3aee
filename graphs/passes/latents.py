"""Changes multi-head latent attention (MLA): the form that a graph takes, and who attends."""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.model_facts import LatentSizes
from snapexport.graphs.markers import (
    ALL_REDUCE,
    ALL_TO_ALL,
    ATTENTION,
    LATENT_ATTENTION,
    TRACE_DOMAIN,
)
from snapexport.graphs.passes.base import computed_range, cut, fresh, graph_input, int64s, node

ABSORBED, EXPANDED = 1, 2
"""Values of a marker's attribute `latent`."""


@dataclass(frozen=True)
class Latents:
    """Replaces the latent markers of a trace by attention markers, in the form that costs less.

    The first pass of a graph, but for BatchParallel. contract/model_facts.py compares the forms.

    absorb: whatever the number of rows.
    """

    absorb: bool = False

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if _is_latent(n)]:
            attributes = dict(marker.attrs) | {"window": 0, "softcap": 0.0}
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


_OWN_ROWS = "own_rows"


@dataclass(frozen=True)
class BatchParallel:
    """Makes the latent attention of a decode step parallel over the batch: SnapStream, section 4.

    A rank has H/N heads of all B tokens. It attends with all heads of b = B/N of them, its own,
    whose latents no other rank holds:

        query [B,H/N,1,n+d]       -> AllToAll -> [b,H,1,n+d]
        c_kv and k_rope [B,1,1,*] -> own rows -> [b,1,1,*]
        attended [b,1,H,v]        -> AllToAll -> [B,1,H/N,v]

    Rows of the batch are in the order of the ranks: rank r has those from r * b on. The first pass
    of a graph, which gets the input `rank`.
    """

    def apply(self, graph: gs.Graph) -> None:
        traced = [node for node in graph.nodes if node.domain == TRACE_DOMAIN]
        ranks = next(int(n.attrs["ranks"]) for n in traced if n.op == ALL_REDUCE)
        _add_index(graph, graph_input(graph, names.INPUT_IDS).shape[0] // ranks)
        for marker in [n for n in traced if n.op == LATENT_ATTENTION]:
            attributes = dict(marker.attrs)
            (query, c_kv, k_rope, *up), (out,) = cut(graph, marker)
            states = [own_rows(graph, one) for one in (c_kv, k_rope)]
            inputs = [_with_all_heads(graph, query, ranks), *states, *up]
            _, tokens, heads, width = out.shape
            shape = (states[0].shape[0], tokens, ranks * heads, width)
            attended = gs.Variable(fresh(graph, "attended"), out.dtype, shape)
            node(graph, LATENT_ATTENTION, inputs, [attended], domain=TRACE_DOMAIN, **attributes)
            _with_all_rows(graph, attended, out, ranks)


def own_rows(graph: gs.Graph, tensor: gs.Tensor) -> gs.Tensor:
    """The rank's own rows of a tensor [B,...]: [b,...]. Without the pass: the tensor itself."""
    index = graph.tensors().get(_OWN_ROWS)
    if index is None:
        return tensor
    rows = gs.Variable(fresh(graph, "own"), tensor.dtype, (*index.shape, *tensor.shape[1:]))
    return node(graph, "Gather", [tensor, index], [rows], axis=0)[0]


def _add_index(graph: gs.Graph, rows: int) -> None:
    """The rows from rank * b on, int64 [b]."""
    rank = gs.Variable(names.RANK, np.int64, (1,))
    graph.inputs.append(rank)
    (first,) = node(graph, "Mul", [rank, int64s(graph, rows)])
    index = gs.Variable(_OWN_ROWS, np.int64, (rows,))
    node(graph, "Add", [first, computed_range(graph, 0, rows)], [index])


def _with_all_heads(graph: gs.Graph, query: gs.Tensor, ranks: int) -> gs.Variable:
    """[B,H/N,C,D] -> [b,H,C,D]."""
    batch, heads, tokens, width = query.shape
    theirs = _exchange(graph, query, gs.Variable(fresh(graph, "theirs"), query.dtype, query.shape))
    shape = (ranks, batch // ranks, heads, tokens, width)
    (by_rank,) = node(graph, "Reshape", [theirs, int64s(graph, *shape)])
    (by_row,) = node(graph, "Transpose", [by_rank], perm=[1, 0, 2, 3, 4])
    whole = (batch // ranks, ranks * heads, tokens, width)
    joined = gs.Variable(fresh(graph, "all_heads"), query.dtype, whole)
    return node(graph, "Reshape", [by_row, int64s(graph, *whole)], [joined])[0]


def _with_all_rows(graph: gs.Graph, attended: gs.Tensor, out: gs.Tensor, ranks: int) -> None:
    """[b,C,H,v] -> [B,C,H/N,v]."""
    rows, tokens, heads, width = attended.shape
    shape = (rows, tokens, ranks, heads // ranks, width)
    (by_row,) = node(graph, "Reshape", [attended, int64s(graph, *shape)])
    (by_rank,) = node(graph, "Transpose", [by_row], perm=[2, 0, 1, 3, 4])
    parts = gs.Variable(fresh(graph, "parts"), attended.dtype, out.shape)
    node(graph, "Reshape", [by_rank, int64s(graph, *out.shape)], [parts])
    _exchange(graph, parts, out)


def _exchange(graph: gs.Graph, parts: gs.Tensor, theirs: gs.Tensor) -> gs.Tensor:
    ranks = parts.shape[0] // graph.tensors()[_OWN_ROWS].shape[0]
    return node(graph, ALL_TO_ALL, [parts], [theirs], domain=TRACE_DOMAIN, ranks=ranks)[0]
