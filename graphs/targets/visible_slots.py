"""Makes masks of the cache slots that each row of a chunk attends to.

TensorRT's Attention takes no valid length, and its is_causal counts from the first cache slot. That
is right for a whole prompt, and wrong for a chunk with a past and for every decode step.
"""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import computed_range, int64s, node
from snapexport.graphs.targets.window_masks import WindowMasks, row_positions


class VisibleSlots:
    """The masks of one graph. Layers share a mask, since it is as large as a head's scores."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._windows = WindowMasks(graph)
        self._masks: dict[tuple[str | None, int, int, int], gs.Tensor] = {}

    def mask(self, valid: gs.Tensor | None, rows: int, slots: int, window: int) -> gs.Tensor:
        """Bool [B,1,rows,slots], true where attended to. The rows are the last valid cache slots.

        valid: int64 [B], the number of valid cache slots; None: all; or the mask itself. window:
        the number of cache slots that each row sees, its own included; 0: no window.
        """
        if valid is not None and valid.dtype == np.bool_:
            return valid
        key = (None if valid is None else valid.name, rows, slots, window)
        if key not in self._masks:
            lengths = int64s(self._graph, slots) if valid is None else valid
            self._masks[key] = self._new(lengths, rows, slots, window)
        return self._masks[key]

    def _new(self, valid: gs.Tensor, rows: int, slots: int, window: int) -> gs.Tensor:
        graph = self._graph
        last = row_positions(graph, valid, -rows, rows)
        visible = node(graph, "LessOrEqual", [computed_range(graph, 0, slots), last])
        if not window:
            return visible[0]
        recent = self._windows.mask(valid, rows, slots, window)
        return node(graph, "And", [*visible, recent])[0]
