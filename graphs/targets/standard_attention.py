"""Replaces cache markers by standard operators: TensorScatter and Attention of opset 24."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION
from snapexport.graphs.passes.base import cut, int64s, node, written
from snapexport.graphs.passes.storage import cast
from snapexport.graphs.targets.attention import WindowMasks, scale_query

_NONE = gs.Variable.empty

_NARROW_HEAD, _MIB = 64, 1 << 20


class FoldedRows:
    """Folds the query heads of a KV head into rows, so that keys and values are read once.

    ONNX Runtime's and TensorRT's operators else go through the keys, or copy them, for each query
    head. Layers of a graph share a mask, and its folded form.
    """

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._masks: dict[tuple[str, int], gs.Tensor] = {}

    def attention(
        self, inputs: list[gs.Tensor], mask: gs.Tensor, **attributes: Any
    ) -> list[gs.Tensor]:
        """Attention of (query [B,H,C,D], key, value [B,Hkv,S,D]) under a mask: [B,H,C,D].

        mask: bool [B,1,C,S], true where attended to.
        """
        query, key, value = inputs
        (batch, heads, rows, head_dim), kv_heads = query.shape, key.shape[1]
        group = heads // kv_heads
        shape = int64s(self._graph, batch, kv_heads, group * rows, head_dim)
        folded = node(self._graph, "Reshape", [query, shape])
        states = [*folded, key, value, self._mask(mask, group, rows)]
        attended = node(self._graph, "Attention", states, **attributes)
        unfolded = int64s(self._graph, batch, heads, rows, value.shape[3])
        return node(self._graph, "Reshape", [*attended, unfolded])

    def _mask(self, mask: gs.Tensor, group: int, rows: int) -> gs.Tensor:
        """The mask once for each query head of a group: bool [B,1,G*C,S]."""
        if group == 1:
            return mask
        if (mask.name, group) not in self._masks:
            # ONNX Runtime's CUDA provider has no Tile of booleans.
            (copies,) = node(self._graph, "Expand", [mask, int64s(self._graph, 1, group, 1, 1)])
            folded = int64s(self._graph, 0, 1, group * rows, -1)
            (self._masks[mask.name, group],) = node(self._graph, "Reshape", [copies, folded])
        return self._masks[mask.name, group]


@dataclass(frozen=True)
class StandardAttention:
    """Replaces every marker that earlier passes left."""

    def apply(self, graph: gs.Graph) -> None:
        masks, folded = WindowMasks(graph), FoldedRows(graph)
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN]:
            if marker.op == CACHE_ATTENTION and marker.inputs[6].dtype == np.bool_:
                _under_mask(graph, marker, folded)
            elif marker.op == CACHE_ATTENTION:
                _with_cache(graph, marker, masks)
            elif marker.op == PROMPT_ATTENTION:
                _whole_prompt(graph, marker, masks)


def _with_cache(graph: gs.Graph, marker: gs.Node, masks: WindowMasks) -> None:
    scores, window = _scores(marker), int(marker.attrs["window"])
    (query, *states, past_key, past_value, slot, valid), (out, *present) = cut(graph, marker)
    caches = written(graph, [past_key, past_value], states, slot, present)
    rows, slots = query.shape[2], past_key.shape[2]
    mask = masks.mask(valid, rows, slots, window) if window else _NONE()
    inputs = [*caches, mask, _NONE(), _NONE(), valid]
    if rows == 1 and not window:
        _decode_attention(graph, query, inputs, out, scores)
    else:
        # With a valid length, is_causal aligns the chunk's rows with the last valid cache slots.
        _causal_attention(graph, [query, *inputs], out, scores)


def _under_mask(graph: gs.Graph, marker: gs.Node, folded: FoldedRows) -> None:
    """A step of several tokens."""
    scores = _scores(marker)
    (query, *states, past_key, past_value, slot, mask), (out, *present) = cut(graph, marker)
    caches = written(graph, [past_key, past_value], states, slot, present)
    if past_key.dtype == np.int8:
        caches = [cast(graph, cache, query.dtype) for cache in caches]
    attended = folded.attention([query, *caches], mask, **scores)
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def _whole_prompt(graph: gs.Graph, marker: gs.Node, masks: WindowMasks) -> None:
    scores, window = _scores(marker), int(marker.attrs["window"])
    qkv, (out,) = cut(graph, marker)
    length = qkv[0].shape[2]
    mask = [masks.mask(None, length, length, window)] if window else []
    _causal_attention(graph, qkv + mask, out, scores)


def _scores(marker: gs.Node) -> dict[str, Any]:
    """Attributes that change the scores; the mask is added after them."""
    return {"scale": marker.attrs["scale"], "softcap": marker.attrs["softcap"]}


def _causal_attention(
    graph: gs.Graph, inputs: list[gs.Tensor], out: gs.Tensor, scores: dict[str, Any]
) -> None:
    attended = node(graph, "Attention", inputs, is_causal=1, **scores)
    node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def _fits_cache(group: int, slots: int, head_dim: int) -> bool:
    """Whether a KV head's keys in fp32 are few enough to be read once for each query head.

    Wide heads lose above 2,048 to 4,096 slots, narrow ones above 32,768. 4 to 8 query heads of a
    KV head take .6 to .95 of the time if they are folded, fewer as long or longer.
    """
    return group < 4 and 4 * slots * head_dim <= _MIB * (4 if head_dim <= _NARROW_HEAD else 1)


def _decode_attention(
    graph: gs.Graph,
    query: gs.Tensor,
    inputs: list[gs.Tensor],
    out: gs.Tensor,
    scores: dict[str, Any],
) -> None:
    """Attention of one query per head, without a mask.

    ONNX Runtime's product of one row reads keys in fp32 as they are stored if it has no factor, and
    rearranges them in each step if it has one: queries are scaled before. Its price is that each
    query head reads its KV head's keys by itself, from the processor's cache if they fit into it.
    Else a KV head's query heads are folded into rows, so that keys are read once for all of them.
    """
    batch, heads, _, head_dim = query.shape
    _, kv_heads, slots, _ = inputs[0].shape
    group = heads // kv_heads
    if query.dtype == np.float32 and (group == 1 or _fits_cache(group, slots, head_dim)):
        queries, scores = [scale_query(graph, query, scores["scale"])], scores | {"scale": 1.0}
    else:
        rows = int64s(graph, batch, kv_heads, group, head_dim)
        queries = node(graph, "Reshape", [query, rows])
    attended = node(graph, "Attention", queries + inputs, **scores)
    shape = int64s(graph, batch, 1, heads, inputs[1].shape[3])
    node(graph, "Reshape", [*attended, shape], [out])
