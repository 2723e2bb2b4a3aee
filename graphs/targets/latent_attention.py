"""Replaces latent cache markers (MLA) by TensorScatter and composed attention, on every target.

No target has an operator for them: queries are wider than values, and the keys are in two caches. A
concatenation would copy the whole cache in each step; two products that are added do not.

The builder of TensorRT for RTX 1.7 has a fused kernel for the expanded form, with values padded to
the width of keys, but not after a layer with experts, and every published model has these.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, node, on_the_host, written
from snapexport.graphs.targets.attention import (
    VisibleSlots,
    composed_attention,
    row_positions,
    scale_query,
)


@dataclass(frozen=True)
class LatentAttention:
    """Replaces every latent marker. Runs before the target's own attention.

    prefix: what is appended to a cache reads only the prefix up to itself, for runtimes that can
    slice by a computed length. Otherwise it reads the whole cache, as a ring's steps do.
    """

    prefix: bool = False

    def apply(self, graph: gs.Graph) -> None:
        masks = VisibleSlots(graph)
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN and n.attrs["latent"]]:
            if marker.op == CACHE_ATTENTION:
                self._with_cache(graph, marker, masks)
            else:
                self._whole_prompt(graph, marker, masks)

    def _with_cache(self, graph: gs.Graph, marker: gs.Node, masks: VisibleSlots) -> None:
        scale = float(marker.attrs["scale"])
        inputs, (out, *present) = cut(graph, marker)
        query, c_kv, k_rope, past_key, past_value, slot, valid, *up = inputs
        caches = written(graph, [past_key, past_value], [c_kv, k_rope], slot, present)
        rows = query.shape[2]
        if self.prefix and marker.attrs["appends"]:
            end = on_the_host(graph, _longest(graph, valid, query.shape[0]))
            latents = [_until(graph, cache, end) for cache in caches]
            mask = _causal_mask(graph, valid, end, rows)
        else:
            latents, mask = caches, masks.mask(valid, rows, past_key.shape[2], window=0)
        self._attend(graph, query, latents, up, mask, out, scale)

    def _whole_prompt(self, graph: gs.Graph, marker: gs.Node, masks: VisibleSlots) -> None:
        scale = float(marker.attrs["scale"])
        (query, c_kv, k_rope, *up), (out,) = cut(graph, marker)
        length = query.shape[2]
        mask = masks.mask(None, length, length, window=0)
        self._attend(graph, query, [c_kv, k_rope], up, mask, out, scale)

    def _attend(
        self,
        graph: gs.Graph,
        query: gs.Tensor,
        latents: list[gs.Tensor],
        up: list[gs.Tensor],
        mask: gs.Tensor,
        out: gs.Tensor,
        scale: float,
    ) -> None:
        """query [B,H,C,D] over c_kv [B,1,S,r] and k_rope [B,1,S,d] -> [B,C,H,r], or [B,C,H,v].

        up: key_up and value_up of the expanded form.
        """
        c_kv, k_rope = latents
        keys, values = _expand(graph, c_kv, *up) if up else (c_kv, c_kv)
        parts = (0, keys.shape[3]), (keys.shape[3], query.shape[3])
        queries = [scale_query(graph, _columns(graph, query, *part), scale) for part in parts]
        products = list(zip(queries, (keys, k_rope), strict=True))
        attended = composed_attention(graph, products, values, mask)
        node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def _longest(graph: gs.Graph, valid: gs.Tensor, batch: int) -> gs.Tensor:
    """The largest valid length, int64 [1]."""
    return valid if batch == 1 else node(graph, "ReduceMax", [valid], keepdims=1)[0]


def _until(graph: gs.Graph, cache: gs.Tensor, end: gs.Tensor) -> gs.Tensor:
    """The first cache slots: [B,1,S,n] -> [B,1,end,n]."""
    batch, kv_heads, _, width = cache.shape
    prefix = gs.Variable(fresh(graph, "prefix"), cache.dtype, (batch, kv_heads, "prefix", width))
    return node(graph, "Slice", [cache, int64s(graph, 0), end, int64s(graph, 2)], [prefix])[0]


def _causal_mask(graph: gs.Graph, valid: gs.Tensor, end: gs.Tensor, rows: int) -> gs.Tensor:
    """Bool [B,1,rows,end], true where attended to."""
    (stop,) = node(graph, "Squeeze", [end])
    zero, one = (gs.Constant(fresh(graph, "const"), np.array(n, np.int64)) for n in (0, 1))
    (slots,) = node(graph, "Range", [zero, stop, one])
    last = row_positions(graph, valid, -rows, rows)
    return node(graph, "LessOrEqual", [slots, last])[0]


def _expand(
    graph: gs.Graph, c_kv: gs.Tensor, key_up: gs.Tensor, value_up: gs.Tensor
) -> tuple[gs.Variable, gs.Variable]:
    """The heads' keys [B,H,S,n] and values [B,H,S,v]. key_up: [H,n,r], value_up: [H,r,v]."""
    heads, nope, _ = key_up.shape
    batch, _, slots, _ = c_kv.shape
    keys = gs.Variable(fresh(graph, "keys"), c_kv.dtype, (batch, heads, slots, nope))
    values = gs.Variable(fresh(graph, "values"), c_kv.dtype, (*keys.shape[:3], value_up.shape[2]))
    key_down = node(graph, "Transpose", [key_up], perm=[0, 2, 1])
    node(graph, "MatMul", [c_kv, *key_down], [keys])
    node(graph, "MatMul", [c_kv, value_up], [values])
    return keys, values


def _columns(graph: gs.Graph, query: gs.Tensor, start: int, end: int) -> gs.Tensor:
    part = gs.Variable(fresh(graph, "part"), query.dtype, (*query.shape[:3], end - start))
    ends = [int64s(graph, n) for n in (start, end, -1)]
    return node(graph, "Slice", [query, *ends], [part])[0]
