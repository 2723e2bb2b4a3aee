"""Makes masks of the cache slots that each row of a chunk attends to.

TensorRT's Attention takes no valid length, and its is_causal counts from the first cache slot. That
is right for a whole prompt, and wrong for a chunk with a past and for every decode step.
"""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import computed_range, node
from snapexport.graphs.targets.window_masks import SharedMasks, row_positions, window_mask


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
