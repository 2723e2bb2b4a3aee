"""Places of a step of several tokens: the host says which position each cache slot holds.

The host may forget a step's last tokens again, such as drafts that were wrong. So a ring slot's
position does not follow from the newest one, and valid slots are no prefix: attention has a mask.
"""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.contract import names
from snapexport.contract.layer_geometry import LayerGeometry
from snapexport.graphs.passes.base import computed_range, fresh, graph_input, int64s, node
from snapexport.graphs.passes.cache import Place
from snapexport.graphs.passes.chunks import since_chunk


def slot_positions_places(
    graph: gs.Graph, layers: Sequence[LayerGeometry]
) -> dict[LayerGeometry, Place]:
    """One place for each shape of layers, whose inputs are `names.place_inputs`.

    The place's valid_length is a mask, which all layers of the shape share.
    """
    return {
        shape: _place(graph, names.place_inputs(index), shape)
        for index, shape in enumerate(dict.fromkeys(layers))
    }


def _place(graph: gs.Graph, inputs: tuple[str, str], shape: LayerGeometry) -> Place:
    position_ids = graph_input(graph, names.POSITION_IDS)
    batch, tokens = position_ids.shape
    write_slot = gs.Variable(inputs[0], np.int64, (batch,))
    held = gs.Variable(inputs[1], np.int64, (batch, shape.cache_slots))
    graph.inputs.extend([write_slot, held])
    mask = gs.Variable(fresh(graph, "visible"), np.bool_, (batch, 1, tokens, shape.cache_slots))
    _visible(graph, position_ids, held, shape, mask)
    return Place(write_slot, mask)


def _visible(
    graph: gs.Graph,
    position_ids: gs.Tensor,
    held: gs.Tensor,
    shape: LayerGeometry,
    mask: gs.Variable,
) -> None:
    """A token at position i sees sinks and kept positions, and the ring's from i - R + 1 to i.

    Of a ring of chunks, it sees those of its own chunk.
    """
    (row,) = node(graph, "Unsqueeze", [position_ids, int64s(graph, 1, 3)])
    (slot,) = node(graph, "Unsqueeze", [held, int64s(graph, 1, 2)])
    is_held = node(graph, "GreaterOrEqual", [slot, int64s(graph, 0)])
    is_past = node(graph, "LessOrEqual", [slot, row])
    before = node(graph, "Sub", [row, int64s(graph, shape.L_recent)])
    is_recent = node(graph, "Greater", [slot, *before])
    in_window = node(graph, "Or", [*is_recent, _outside_ring(graph, shape)])
    present = node(graph, "And", [*is_held, *is_past])
    if shape.chunk:
        in_window = node(graph, "And", [*in_window, since_chunk(graph, row, slot, shape.chunk)])
    node(graph, "And", [*present, *in_window], [mask])


def _outside_ring(graph: gs.Graph, shape: LayerGeometry) -> gs.Tensor:
    """Bool [S]: the slots of sinks and of kept positions."""
    index = computed_range(graph, 0, shape.cache_slots)
    is_sink = node(graph, "Less", [index, int64s(graph, shape.L_sink)])
    ring_end = int64s(graph, shape.L_sink + shape.ring_slots)
    is_kept = node(graph, "GreaterOrEqual", [index, ring_end])
    return node(graph, "Or", [*is_sink, *is_kept])[0]
