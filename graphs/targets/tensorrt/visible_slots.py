"""Which slots of a cache each row of a chunk attends to, as masks.

TensorRT's Attention takes no valid length, and its causal order counts from the first slot: right
for a whole prompt, wrong for a chunk that has a past and for every decode step.
"""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import fresh, int64s, node


class VisibleSlots:
    """The masks of one graph; layers share theirs, for it is as large as a head's scores."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._masks: dict[tuple[str | None, int, int, int], gs.Tensor] = {}

    def mask(self, valid: gs.Tensor | None, rows: int, slots: int, window: int) -> gs.Tensor:
        """Bool [B,1,rows,slots], true where attended to. The rows are the last of the valid slots.

        valid: int64 [B], the slots in use; None: all of them. window: 0, or how many slots each
        row sees, its own included.
        """
        key = (None if valid is None else valid.name, rows, slots, window)
        if key not in self._masks:
            lengths = int64s(self._graph, slots) if valid is None else valid
            self._masks[key] = self._new(lengths, rows, slots, window)
        return self._masks[key]

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        every_slot = _range(self._graph, 0, slots)
        last = self._column(valid, -rows, rows)
        (visible,) = node(self._graph, "LessOrEqual", [every_slot, last])
        if not window:
            return visible
        first = self._column(valid, -rows - window + 1, rows)
        (recent,) = node(self._graph, "GreaterOrEqual", [every_slot, first])
        return node(self._graph, "And", [visible, recent])[0]

    def _column(self, valid: gs.Tensor, offset: int, rows: int) -> gs.Tensor:
        """[B,1,rows,1]: valid + offset + i for row i."""
        graph = self._graph
        (lengths,) = node(graph, "Unsqueeze", [valid, int64s(graph, 1, 2, 3)])
        offsets = _range(graph, offset, offset + rows)
        (column,) = node(graph, "Unsqueeze", [offsets, int64s(graph, 1)])
        return node(graph, "Add", [lengths, column])[0]


def _range(graph: gs.Graph, start: int, stop: int) -> gs.Tensor:
    """Computed, so that the file does not carry it."""
    scalars = [np.array(value, np.int64) for value in (start, stop, 1)]
    return node(graph, "Range", [gs.Constant(fresh(graph, "const"), s) for s in scalars])[0]
