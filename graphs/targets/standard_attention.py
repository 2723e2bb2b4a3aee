"""Cache markers to standard operators: TensorScatter and Attention of opset 24."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION
from snapexport.graphs.passes.base import cut, int64s, node

_NONE = gs.Variable.empty


@dataclass(frozen=True)
class StandardAttention:
    """Whatever marker is left becomes standard operators."""

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if n.domain == CACHE_DOMAIN]:
            if marker.op == CACHE_ATTENTION:
                self._with_cache(graph, marker)
            elif marker.op == PROMPT_ATTENTION:
                self._whole_prompt(graph, marker)

    def _with_cache(self, graph: gs.Graph, marker: gs.Node) -> None:
        scale = marker.attrs["scale"]
        (query, *states, past_key, past_value, slot, valid), (out, *present) = cut(graph, marker)
        for past, new, cache in zip((past_key, past_value), states, present, strict=True):
            node(graph, "TensorScatter", [past, new, slot], [cache], axis=-2, mode="linear")
        inputs = [*present, _NONE(), _NONE(), _NONE(), valid]
        if query.shape[2] == 1:
            _decode_attention(graph, query, inputs, out, scale)
        else:
            # With a valid length, causal is bottom-right aligned: the chunk's rows come last.
            attended = node(graph, "Attention", [query, *inputs], scale=scale, is_causal=1)
            node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])

    def _whole_prompt(self, graph: gs.Graph, marker: gs.Node) -> None:
        scale = marker.attrs["scale"]
        qkv, (out,) = cut(graph, marker)
        attended = node(graph, "Attention", qkv, scale=scale, is_causal=1)
        node(graph, "Transpose", attended, [out], perm=[0, 2, 1, 3])


def _decode_attention(
    graph: gs.Graph, query: gs.Tensor, inputs: list[gs.Tensor], out: gs.Tensor, scale: float
) -> None:
    """One query per head: a KV head's query heads are folded into rows, 1.5 to 3 times faster."""
    batch, heads, _, head_dim = query.shape
    kv_heads = inputs[0].shape[1]
    rows = int64s(graph, batch, kv_heads, heads // kv_heads, head_dim)
    folded = node(graph, "Reshape", [query, rows])
    attended = node(graph, "Attention", folded + inputs, scale=scale)
    shape = int64s(graph, batch, 1, heads, inputs[1].shape[3])
    node(graph, "Reshape", [*attended, shape], [out])
