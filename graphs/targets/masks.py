"""Makes masks for attention operators without windows or valid lengths.

TensorRT's Attention takes no valid length, and its is_causal counts from the first cache slot. That
is right for a whole prompt, and wrong for a chunk with a past and for every decode step.
"""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import computed_range, int64s, node


class SharedMasks:
    """The masks of one graph. Layers share a mask, since it is as large as a head's scores."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._masks: dict[tuple[str | None, int, int, int], gs.Tensor] = {}

    def mask(self, valid: gs.Tensor | None, rows: int, slots: int, window: int) -> gs.Tensor:
        """Bool [B,1,rows,slots]. The rows are the last valid cache slots.

        valid: int64 [B], the number of valid cache slots; None: all. window: the number of cache
        slots that each row sees, its own included.
        """
        key = (None if valid is None else valid.name, rows, slots, window)
        if key not in self._masks:
            lengths = int64s(self._graph, slots) if valid is None else valid
            self._masks[key] = self._new(lengths, rows, slots, window)
        return self._masks[key]

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        raise NotImplementedError


class WindowMasks(SharedMasks):
    """False before a row's window, true in it and after it. Cache slots are positions."""

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        return window_mask(self._graph, valid, rows, slots, window)


def window_mask(graph: gs.Graph, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
    """Bool [B,1,rows,slots]: false before a row's window, true in it and after it."""
    # Row i is at position valid - rows + i, and its window begins window - 1 before that.
    first = row_positions(graph, valid, 1 - rows - window, rows)
    return node(graph, "GreaterOrEqual", [computed_range(graph, 0, slots), first])[0]


def row_positions(graph: gs.Graph, valid: gs.Tensor, offset: int, rows: int) -> gs.Tensor:
    """Int64 [B,1,rows,1]: valid + offset + i for row i."""
    (lengths,) = node(graph, "Unsqueeze", [valid, int64s(graph, 1, 2, 3)])
    offsets = computed_range(graph, offset, offset + rows)
    (column,) = node(graph, "Unsqueeze", [offsets, int64s(graph, 1)])
    return node(graph, "Add", [lengths, column])[0]


class VisibleSlots(SharedMasks):
    """True where attended to."""

    def mask(self, valid: gs.Tensor | None, rows: int, slots: int, window: int) -> gs.Tensor:
        """As of all masks. valid: or the mask itself. window: 0 for none."""
        if valid is not None and valid.dtype == np.bool_:
            return valid
        return super().mask(valid, rows, slots, window)

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        graph = self._graph
        last = row_positions(graph, valid, -rows, rows)
        visible = node(graph, "LessOrEqual", [computed_range(graph, 0, slots), last])
        if not window:
            return visible[0]
        recent = window_mask(graph, valid, rows, slots, window)
        return node(graph, "And", [*visible, recent])[0]
