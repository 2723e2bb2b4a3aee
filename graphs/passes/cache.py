"""Cache inputs and outputs of a graph, and the attention that reads and writes them."""

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import cut, node


def attend_with_cache(
    graph: gs.Graph, layer: int, marker: gs.Node, slots: int, where: list[gs.Tensor], appends: bool
) -> None:
    """Replace a traced attention by one over a cache of `slots`; `where` is slot, valid_length."""
    scale = marker.attrs["scale"]
    qkv, outputs = cut(graph, marker)
    caches = list(zip(qkv[1:], (names.past_key(layer), names.past_value(layer)), strict=True))
    past = [cache_like(states, name, slots) for states, name in caches]
    presents = (names.present_key(layer), names.present_value(layer))
    present = [
        cache_like(states, name, slots) for states, name in zip(qkv[1:], presents, strict=True)
    ]
    node(
        graph,
        CACHE_ATTENTION,
        qkv + past + where,
        outputs + present,
        domain=CACHE_DOMAIN,
        layer=layer,
        scale=scale,
        appends=int(appends),
    )
    graph.inputs.extend(past)
    graph.outputs.extend(present)


def cache_like(states: gs.Tensor, name: str, slots: int) -> gs.Variable:
    """A cache tensor [B,Hkv,slots,D] for key or value states [B,Hkv,C,D]."""
    batch, kv_heads, _, head_dim = states.shape
    return gs.Variable(name, states.dtype, (batch, kv_heads, slots, head_dim))
