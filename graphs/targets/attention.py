"""Parts of every target's attention: masks, and attention composed of single operators.

Attention is composed where a target has no operator or kernel for it: a soft cap or a sink beside a
runtime's operators, latent attention (MLA), and the limits in `contract/targets.py`. The result is
exact. It costs memory for the scores, [B,H,C,S] in float32: 4 * B * H * C * S bytes.

Masks are for attention operators without windows or valid lengths. TensorRT's Attention takes no
valid length, and its is_causal counts from the first cache slot. That is right for a whole prompt,
and wrong for a chunk with a past and for every decode step.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import computed_range, fresh, int64s, node

_FLOAT = onnx.TensorProto.FLOAT
_HIDDEN = -3.0e38


def composed_attention(
    graph: gs.Graph,
    products: Sequence[tuple[gs.Tensor, gs.Tensor]],
    value: gs.Tensor,
    mask: gs.Tensor,
    softcap: float = 0.0,
    sink: gs.Tensor | None = None,
) -> list[gs.Tensor]:
    """Attention of scaled queries: one output, [B,H,C,D].

    products: pairs of query [B,H,C,D'] and key [B,Hkv,S,D'], whose products add up to the scores.
    value: [B,Hkv,S,D]. S may be a name, for a size that the graph computes. mask: bool [B,1,C,S],
    true where attended to. softcap: 0.0 caps nothing. sink: [H], a further score of each head,
    whose share goes to no value (gpt-oss).

    Products fold a KV head's query heads into rows. Between them all is float32, as in
    transformers.
    """
    query, key = products[0]
    batch, heads, rows, _ = query.shape
    slots = key.shape[2] if isinstance(key.shape[2], int) else -1
    (total,) = _sum(graph, [_product(graph, *pair, slots) for pair in products])
    (scores,) = node(graph, "Cast", [total], to=_FLOAT)
    capped = _cap(graph, scores, softcap) if softcap else scores
    # Added: a Where that broadcasts over the heads takes ten times as long in ONNX Runtime.
    bias = node(graph, "Where", [mask, _float(graph, 0.0), _float(graph, _HIDDEN)])
    (hidden,) = node(graph, "Add", [capped, *bias])
    if sink is None:
        share = node(graph, "Softmax", [hidden], axis=-1)
    else:
        share = _beside_sink(graph, hidden, sink, (batch, heads, rows))
    (rounded,) = node(graph, "CastLike", [*share, query])
    kv_heads = value.shape[1]
    weights = _reshape(graph, rounded, batch, kv_heads, heads // kv_heads * rows, slots)
    (attended,) = node(graph, "MatMul", [weights, value])
    return [_reshape(graph, attended, batch, heads, rows, value.shape[3])]


def scale_query(graph: gs.Graph, query: gs.Tensor, scale: float) -> gs.Tensor:
    """The queries times attention's scale, in their own type."""
    constant = gs.Constant(fresh(graph, "scale"), np.array(scale, np.float32))
    (factor,) = node(graph, "CastLike", [constant, query])
    product = gs.Variable(fresh(graph, "scaled"), query.dtype, query.shape)
    return node(graph, "Mul", [query, factor], [product])[0]


def _product(graph: gs.Graph, query: gs.Tensor, key: gs.Tensor, slots: int) -> gs.Tensor:
    """query . key: [B,H,C,S]. slots: -1 for a computed number."""
    batch, heads, rows, width = query.shape
    kv_heads = key.shape[1]
    (key_t,) = node(graph, "Transpose", [key], perm=[0, 1, 3, 2])
    folded = _reshape(graph, query, batch, kv_heads, heads // kv_heads * rows, width)
    product = node(graph, "MatMul", [folded, key_t])
    return _reshape(graph, *product, batch, heads, rows, slots)


def _sum(graph: gs.Graph, products: list[gs.Tensor]) -> list[gs.Tensor]:
    total, *others = products
    for product in others:
        (total,) = node(graph, "Add", [total, product])
    return [total]


def _beside_sink(
    graph: gs.Graph, scores: gs.Tensor, sink: gs.Tensor, shape: tuple[int, int, int]
) -> list[gs.Tensor]:
    """The softmax over a row's scores and its head's sink, without the sink's share."""
    batch, heads, rows = shape
    (column,) = node(graph, "Cast", [_reshape(graph, sink, 1, heads, 1, 1)], to=_FLOAT)
    expanded = node(graph, "Expand", [column, int64s(graph, batch, heads, rows, 1)])
    (with_sink,) = node(graph, "Concat", [scores, *expanded], axis=-1)
    share = node(graph, "Softmax", [with_sink], axis=-1)
    return node(graph, "Slice", [*share, *(int64s(graph, n) for n in (0, -1, -1))])


def _cap(graph: gs.Graph, scores: gs.Tensor, softcap: float) -> gs.Tensor:
    limit = _float(graph, softcap)
    bent = node(graph, "Tanh", node(graph, "Div", [scores, limit]))
    return node(graph, "Mul", [*bent, limit])[0]


def _reshape(graph: gs.Graph, tensor: gs.Tensor, *shape: int) -> gs.Tensor:
    return node(graph, "Reshape", [tensor, int64s(graph, *shape)])[0]


def _float(graph: gs.Graph, value: float) -> gs.Constant:
    return gs.Constant(fresh(graph, "const"), np.array(value, np.float32))


class SharedMasks:
    """The masks of one graph. Layers share a mask, since it is as large as a head's scores."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._masks: dict[tuple[str | None, int, int, int], gs.Tensor] = {}

    def mask(self, valid: gs.Tensor | None, rows: int, slots: int, window: int) -> gs.Tensor:
        """Bool [B,1,rows,slots]. The rows are the last valid cache slots.

        valid: int64 [B], the number of valid cache slots; None: all. window: the number of cache
        slots that each row sees, its own included.
        """
        key = (None if valid is None else valid.name, rows, slots, window)
        if key not in self._masks:
            lengths = int64s(self._graph, slots) if valid is None else valid
            self._masks[key] = self._new(lengths, rows, slots, window)
        return self._masks[key]

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        raise NotImplementedError


class WindowMasks(SharedMasks):
    """False before a row's window, true in it and after it. Cache slots are positions."""

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        return window_mask(self._graph, valid, rows, slots, window)


def window_mask(graph: gs.Graph, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
    """Bool [B,1,rows,slots]: false before a row's window, true in it and after it."""
    # Row i is at position valid - rows + i, and its window begins window - 1 before that.
    first = row_positions(graph, valid, 1 - rows - window, rows)
    return node(graph, "GreaterOrEqual", [computed_range(graph, 0, slots), first])[0]


def row_positions(graph: gs.Graph, valid: gs.Tensor, offset: int, rows: int) -> gs.Tensor:
    """Int64 [B,1,rows,1]: valid + offset + i for row i."""
    (lengths,) = node(graph, "Unsqueeze", [valid, int64s(graph, 1, 2, 3)])
    offsets = computed_range(graph, offset, offset + rows)
    (column,) = node(graph, "Unsqueeze", [offsets, int64s(graph, 1)])
    return node(graph, "Add", [lengths, column])[0]


class VisibleSlots(SharedMasks):
    """True where attended to."""

    def mask(self, valid: gs.Tensor | None, rows: int, slots: int, window: int) -> gs.Tensor:
        """A mask as `SharedMasks` says. valid: or the mask itself. window: 0 for none."""
        if valid is not None and valid.dtype == np.bool_:
            return valid
        return super().mask(valid, rows, slots, window)

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        graph = self._graph
        last = row_positions(graph, valid, -rows, rows)
        visible = node(graph, "LessOrEqual", [computed_range(graph, 0, slots), last])
        if not window:
            return visible[0]
        recent = window_mask(graph, valid, rows, slots, window)
        return node(graph, "And", [*visible, recent])[0]
