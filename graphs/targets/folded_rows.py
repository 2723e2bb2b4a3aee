"""Folds the query heads of a KV head into rows, so that attention reads keys and values once.

ONNX Runtime's and TensorRT's operators else go through the keys, or copy them, for each query head.
"""

from typing import Any

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import int64s, node


class FoldedRows:
    """Folded queries and masks of one graph. Layers share a mask, and its folded form."""

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
