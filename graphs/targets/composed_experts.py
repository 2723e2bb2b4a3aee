"""Writes experts as calls of our functions, for targets without an operator for them.

    few choices     ExpertsGathered: the weights of all choices are copied at once
    more            ExpertsInBlocks, or ExpertsInEveryBlock for compilers

The forms are in `graphs/functions/experts.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.functions.experts import Experts, experts
from snapexport.graphs.markers import BLOCK_EXPERTS, EXPERTS, TRACE_DOMAIN
from snapexport.graphs.passes.base import call, cut

_GATHERED_VALUES = 1 << 27
"""Weights that ExpertsGathered may copy: 256 MB in 16 bits."""
_LARGEST_BLOCK = 128
_WEIGHTS = {
    EXPERTS: ("gate_up", "down"),
    BLOCK_EXPERTS: tuple(
        stack + part for stack in ("gate_up", "down") for part in ("", "_scales", "_zeros")
    ),
}
"""Inputs of a marker of experts (graphs/markers.py) between the routing and the biases."""
_NO_LIMIT = 3.0e38


@dataclass(frozen=True)
class ComposedExperts:
    """Every layer's experts. every_block: a fixed number of turns, since a compiler needs it."""

    every_block: bool = False

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if n.domain == TRACE_DOMAIN and n.op in _WEIGHTS]:
            self._replace(graph, marker)

    def _replace(self, graph: gs.Graph, marker: gs.Node) -> None:
        of, attributes = _formula(marker), _attributes(marker)
        values = _values(marker)
        inputs, outputs = cut(graph, marker)
        inputs = [one for one in inputs if not one.is_empty()]
        (rows, k), (count, *_) = inputs[1].shape, inputs[3].shape
        if rows * k <= count and rows * k * values <= _GATHERED_VALUES:
            call(graph, experts("ExpertsGathered", of), inputs, outputs, **attributes)
            return
        block = block_rows(rows, k, count)
        attributes |= {"block": [block], "blocks": [most_blocks(rows, k, count, block)]}
        name = "ExpertsInEveryBlock" if self.every_block else "ExpertsInBlocks"
        call(graph, experts(name, of), inputs, outputs, **attributes)


def _formula(marker: gs.Node) -> Experts:
    weights = _WEIGHTS[marker.op]
    stored = zip(weights, marker.inputs[3:], strict=False)
    parts = tuple(name for name, one in stored if not one.is_empty())
    return Experts(
        biased=len(marker.inputs) > 3 + len(weights),
        activation=marker.attrs["activation"],
        gated=bool(marker.attrs["gated"]),
        integers=parts if marker.op == BLOCK_EXPERTS else (),
    )


def _attributes(marker: gs.Node) -> dict[str, Any]:
    """Those of the function."""
    rest = {name: one for name, one in marker.attrs.items() if name not in ("activation", "gated")}
    return rest | {"limit": rest["limit"] or _NO_LIMIT}


def _values(marker: gs.Node) -> int:
    """Weights of one expert: of two matrices, and a gate as large as the first."""
    states, wide = marker.inputs[0], marker.inputs[3]
    rows = wide.shape[1] * (1.5 if marker.attrs["gated"] else 2)
    return int(rows * states.shape[1])


def block_rows(rows: int, k: int, experts: int) -> int:
    """Rows of a block: about twice as many as choose an expert, and no more than there are."""
    mean = rows * k / experts
    return min(rows, _LARGEST_BLOCK, 1 << max(0, int(np.ceil(np.log2(2 * mean)))))


def most_blocks(rows: int, k: int, experts: int, block: int) -> int:
    """Most blocks that any choice of k different experts for each row can fill."""
    chosen = min(experts, rows * k)
    return min((rows * k + chosen * (block - 1)) // block, experts * -(-rows // block))
