"""Places of a step of several tokens: the host says which position each cache slot holds.

The host may forget a step's last tokens again, such as drafts that were wrong. So a ring slot's
position does not follow from the newest one, and valid slots are not a prefix: attention has a
mask.
"""

from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.graphs.kinds import decode_caches
from snapexport.graphs.method import MethodSurgery
from snapexport.graphs.passes.base import computed_range, fresh, graph_input, int64s, node
from snapexport.graphs.passes.cache import Place
from snapexport.graphs.passes.chunks import since_chunk
from snapexport.graphs.recipe import GraphSurgery
from snapexport.methods.several_tokens.spec import GRAPH, place_inputs


def slot_positions_places(graph: gs.Graph, geometry: CacheGeometry) -> dict[LayerGeometry, Place]:
    """One place for each shape of layers, whose inputs are `place_inputs`.

    The place's valid_length is a mask, which all layers of the shape share.
    """
    shapes = dict.fromkeys(geometry.layers)
    prompt_length = _prompt_length(graph) if any(shape.K for shape in shapes) else None
    return {
        shape: _place(graph, place_inputs(index), shape, prompt_length)
        for index, shape in enumerate(shapes)
    }


def _prompt_length(graph: gs.Graph) -> gs.Variable:
    batch = graph_input(graph, names.POSITION_IDS).shape[0]
    prompt_length = gs.Variable(names.PROMPT_LENGTH, np.int64, (batch,))
    graph.inputs.append(prompt_length)
    return prompt_length


def _place(
    graph: gs.Graph,
    inputs: tuple[str, str],
    shape: LayerGeometry,
    prompt_length: gs.Variable | None,
) -> Place:
    position_ids = graph_input(graph, names.POSITION_IDS)
    batch, tokens = position_ids.shape
    write_slot = gs.Variable(inputs[0], np.int64, (batch,))
    held = gs.Variable(inputs[1], np.int64, (batch, shape.cache_slots))
    graph.inputs.extend([write_slot, held])
    mask = gs.Variable(fresh(graph, "visible"), np.bool_, (batch, 1, tokens, shape.cache_slots))
    _visible(graph, position_ids, held, shape, _is_whole(graph, prompt_length, shape), mask)
    return Place(write_slot, mask)


def _visible(
    graph: gs.Graph,
    position_ids: gs.Tensor,
    held: gs.Tensor,
    shape: LayerGeometry,
    is_whole: gs.Tensor | None,
    mask: gs.Variable,
) -> None:
    """A token at position i sees sinks and kept positions, and the ring's from i - R + 1 to i.

    Of a ring of chunks, it sees those of its own chunk. is_whole: bool [B,1,1,1], where the ring is
    all but the sinks; None where that is so of every prompt.
    """
    (row,) = node(graph, "Unsqueeze", [position_ids, int64s(graph, 1, 3)])
    (slot,) = node(graph, "Unsqueeze", [held, int64s(graph, 1, 2)])
    is_held = node(graph, "GreaterOrEqual", [slot, int64s(graph, 0)])
    is_past = node(graph, "LessOrEqual", [slot, row])
    ring: gs.Tensor = int64s(graph, shape.L_recent)
    if is_whole is not None:
        (ring,) = node(graph, "Where", [is_whole, int64s(graph, shape.L_recent + shape.K), ring])
    before = node(graph, "Sub", [row, ring])
    is_recent = node(graph, "Greater", [slot, *before])
    in_window = node(graph, "Or", [*is_recent, _outside_ring(graph, shape, is_whole)])
    present = node(graph, "And", [*is_held, *is_past])
    if shape.chunk:
        in_window = node(graph, "And", [*in_window, since_chunk(graph, row, slot, shape.chunk)])
    node(graph, "And", [*present, *in_window], [mask])


def _is_whole(
    graph: gs.Graph, prompt_length: gs.Variable | None, shape: LayerGeometry
) -> gs.Tensor | None:
    """Bool [B,1,1,1]: whether the prompt is held whole; None where that changes nothing."""
    if prompt_length is None or not shape.K:
        return None
    (column,) = node(graph, "Unsqueeze", [prompt_length, int64s(graph, 1, 2, 3)])
    return node(graph, "LessOrEqual", [column, int64s(graph, shape.size)])[0]


def _outside_ring(graph: gs.Graph, shape: LayerGeometry, is_whole: gs.Tensor | None) -> gs.Tensor:
    """Bool [S] or [B,1,1,S]: the slots of sinks and of kept positions."""
    index = computed_range(graph, 0, shape.cache_slots)
    (is_sink,) = node(graph, "Less", [index, int64s(graph, shape.L_sink)])
    if is_whole is None:
        return is_sink
    ring_end = int64s(graph, shape.L_sink + shape.ring_slots)
    (is_behind,) = node(graph, "GreaterOrEqual", [index, ring_end])
    (is_voted,) = node(graph, "Not", [is_whole])
    (is_kept,) = node(graph, "And", [is_behind, is_voted])
    return node(graph, "Or", [is_sink, is_kept])[0]


class SeveralTokensSurgery(MethodSurgery):
    """verify.onnx is decode's graph of a trace of several tokens; both take the positions."""

    kinds: ClassVar = {GRAPH: GraphSurgery(decode_caches)}

    places = staticmethod(slot_positions_places)


SURGERY = SeveralTokensSurgery()
