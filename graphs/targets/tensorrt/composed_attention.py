"""Writes attention as single operators, where TensorRT has no fused kernel for it.

Reasons: a soft cap (Gemma 2), and the limits in `contract/targets.py`. The result is exact. It
costs memory for the scores, [B,H,C,S] in float32: 4 * B * H * C * S bytes.
"""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import fresh, int64s, node

_FLOAT = 1  # onnx.TensorProto.FLOAT
_HIDDEN = -3.0e38


def composed_attention(graph: gs.Graph, inputs: list[gs.Tensor], softcap: float) -> list[gs.Tensor]:
    """(scaled query [B,H,C,D], key, value [B,Hkv,S,D], bool mask [B,1,C,S]) -> [B,H,C,D].

    softcap: 0.0 caps nothing.

    Both products fold a KV head's query heads into rows. Between them all is float32, as in
    transformers.
    """
    query, key, value, mask = inputs
    batch, heads, rows, _ = query.shape
    kv_heads, slots = key.shape[1:3]
    folded = _reshape(graph, query, batch, kv_heads, heads // kv_heads * rows, query.shape[3])
    (key_t,) = node(graph, "Transpose", [key], perm=[0, 1, 3, 2])
    (products,) = node(graph, "MatMul", [folded, key_t])
    (scores,) = node(
        graph, "Cast", [_reshape(graph, products, batch, heads, rows, slots)], to=_FLOAT
    )
    capped = _cap(graph, scores, softcap) if softcap else scores
    (hidden,) = node(graph, "Where", [mask, capped, _float(graph, _HIDDEN)])
    share = node(graph, "Softmax", [hidden], axis=-1)
    (rounded,) = node(graph, "CastLike", [*share, query])
    weights = _reshape(graph, rounded, batch, kv_heads, heads // kv_heads * rows, slots)
    (attended,) = node(graph, "MatMul", [weights, value])
    return [_reshape(graph, attended, batch, heads, rows, value.shape[3])]


def _cap(graph: gs.Graph, scores: gs.Tensor, softcap: float) -> gs.Tensor:
    limit = _float(graph, softcap)
    bent = node(graph, "Tanh", node(graph, "Div", [scores, limit]))
    return node(graph, "Mul", [*bent, limit])[0]


def _reshape(graph: gs.Graph, tensor: gs.Tensor, *shape: int) -> gs.Tensor:
    return node(graph, "Reshape", [tensor, int64s(graph, *shape)])[0]


def _float(graph: gs.Graph, value: float) -> gs.Constant:
    return gs.Constant(fresh(graph, "const"), np.array(value, np.float32))
