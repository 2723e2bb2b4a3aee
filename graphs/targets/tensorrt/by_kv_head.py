"""Attention of a prompt's chunk with its KV heads in the place of the batch.

For query heads that share a KV head the kernel copies keys and values once for every query head,
2.1 GB at 131,072 positions and 32 heads of 128. In this form it copies them once for every KV head,
0.5 GB. Heads that share none stay as they are: the builder of TensorRT for RTX 1.7 has no kernel
for one head of each of several batches.
"""

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import int64s, node


def fused_by_kv_head(graph: gs.Graph, inputs: list[gs.Tensor], is_causal: bool) -> list[gs.Tensor]:
    """Attention of (query [1,H,C,D], key, value [1,Hkv,S,D][, mask]): [1,H,C,D]. Scale 1."""
    query, key, value, *mask = inputs
    batch, heads, rows, head_dim = query.shape
    kv_heads = key.shape[1]
    if heads == kv_heads:
        return node(graph, "Attention", inputs, scale=1.0, is_causal=int(is_causal))
    shape = int64s(graph, kv_heads, heads // kv_heads, rows, head_dim)
    (folded,) = node(graph, "Reshape", [query, shape])
    states = [_as_batch(graph, state) for state in (key, value)]
    read = [folded, *states, *mask]
    attended = node(graph, "Attention", read, scale=1.0, is_causal=int(is_causal))
    unfolded = int64s(graph, batch, heads, rows, value.shape[3])
    return node(graph, "Reshape", [*attended, unfolded])


def _as_batch(graph: gs.Graph, states: gs.Tensor) -> gs.Tensor:
    """States [1,Hkv,S,D] -> [Hkv,1,S,D]."""
    _, heads, slots, width = states.shape
    return node(graph, "Reshape", [states, int64s(graph, heads, 1, slots, width)])[0]
