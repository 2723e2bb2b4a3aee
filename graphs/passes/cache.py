"""Gives a graph its cache inputs and outputs, and the attention that reads and writes them."""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.graph_options import GraphOptions
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, graph_output, int64s, node
from snapexport.graphs.passes.storage import States, storage_of


class Place(NamedTuple):
    """slot: the cache slot of the first new row. valid_length: valid cache slots after the write.

    int64 [B] each. valid_length may be a mask instead, bool [B,1,C,S].
    """

    slot: gs.Tensor
    valid_length: gs.Tensor


def attend_with_cache(
    graph: gs.Graph,
    layer: int,
    marker: gs.Node,
    slots: int,
    place: Place,
    *,
    appends: bool,
    options: GraphOptions | None = None,
) -> None:
    """Replace a traced attention by one over a cache of `slots` cache slots, written at `place`.

    options: the form of a compressed cache; None for a full cache.
    """
    # A cache that isn't appended to is a ring, which holds only positions inside the window.
    attributes = attention_attributes(marker, slots if appends else 0)
    (query, key, value, *more), (out,) = cut(graph, marker)
    states = States(query, key, value)
    storage = storage_of(options.cache_dtype if options else None)
    held = storage.held(graph, layer, states)
    past, present = add_caches(graph, layer, held.key, held.value, slots)
    node(
        graph,
        CACHE_ATTENTION,
        [*held, *past, *place, *more],
        [storage.attended(graph, layer, states, out), *present],
        domain=CACHE_DOMAIN,
        appends=int(appends),
        valid_only=int(options is not None and options.attends_valid),
        **attributes,
    )


def attend_to_cache_of(
    graph: gs.Graph, source: int, marker: gs.Node, options: GraphOptions | None = None
) -> None:
    """Replace a traced attention by one over the cache that an earlier layer writes in this step.

    The marker's own key and value are not read. options: as of that layer.
    """
    (query, _, _, *more), (out,) = cut(graph, marker)
    writer = graph_output(graph, names.present_key(source)).inputs[0]
    _, key, value, past, _, *place = writer.inputs[:7]
    storage = storage_of(options.cache_dtype if options else None)
    inputs = [storage.query(graph, source, query), key, value, *writer.outputs[1:], *place, *more]
    attended = storage.attended(graph, source, States(query, key, value), out)
    appends = writer.attrs["appends"]
    attributes = attention_attributes(marker, past.shape[2] if appends else 0)
    attributes |= {"appends": appends, "valid_only": writer.attrs["valid_only"]}
    node(graph, CACHE_ATTENTION, inputs, [attended], domain=CACHE_DOMAIN, **attributes)


def attention_attributes(marker: gs.Node, positions: int) -> dict[str, object]:
    """The attributes of an attention marker. window is 0 if it hides none of the `positions`."""
    kept = ("layer", "scale", "window", "softcap", "latent")
    attributes = {name: marker.attrs[name] for name in kept}
    if attributes["window"] >= positions:
        attributes["window"] = 0
    return attributes


def cache_like(states: gs.Tensor, name: str, slots: int) -> gs.Variable:
    """A cache tensor [B,Hkv,slots,D] for key or value states [B,Hkv,C,D]."""
    batch, kv_heads, _, head_dim = states.shape
    return gs.Variable(name, states.dtype, (batch, kv_heads, slots, head_dim))


def add_caches(
    graph: gs.Graph, layer: int, key: gs.Tensor, value: gs.Tensor, slots: int
) -> tuple[list[gs.Variable], list[gs.Variable]]:
    """Add a layer's past caches to the graph's inputs and its present ones to the outputs."""
    past = [
        cache_like(key, names.past_key(layer), slots),
        cache_like(value, names.past_value(layer), slots),
    ]
    present = [cache_like(cache, names.present_of(cache.name), slots) for cache in past]
    graph.inputs.extend(past)
    graph.outputs.extend(present)
    return past, present


def query_heads(kv_heads: Sequence[int], queries: int) -> list[int]:
    """The query heads of some KV heads, each of which has `queries` of them."""
    return [head * queries + query for head in kv_heads for query in range(queries)]


def of_heads(
    graph: gs.Graph, states: gs.Tensor, heads: Sequence[int], axis: int = 1
) -> gs.Variable:
    """Some heads of states [B,H,C,D], or of [H] along the axis 0."""
    shape = (*states.shape[:axis], len(heads), *states.shape[axis + 1 :])
    part = gs.Variable(fresh(graph, "heads"), states.dtype, shape)
    return node(graph, "Gather", [states, int64s(graph, *heads)], [part], axis=axis)[0]
