"""Writes experts as calls of our functions, for targets without an operator for them.

    few choices     ExpertsGathered: the weights of all choices are copied at once
    more            ExpertsInBlocks, or ExpertsInEveryBlock for compilers

The forms are in `graphs/functions/experts.py`.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.functions.experts import experts
from snapexport.graphs.markers import EXPERTS, TRACE_DOMAIN
from snapexport.graphs.passes.base import call, cut

_GATHERED_VALUES = 1 << 27
"""Weights that ExpertsGathered may copy: 256 MB in 16 bits."""
_LARGEST_BLOCK = 128
_WITHOUT_BIASES = 5
"""Inputs of a marker of experts without biases (graphs/markers.py)."""
_NO_LIMIT = 3.0e38


@dataclass(frozen=True)
class ComposedExperts:
    """Every layer's experts. every_block: a fixed number of turns, since a compiler needs it."""

    every_block: bool = False

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, EXPERTS)]:
            attributes = {name: marker.attrs[name] for name in ("alpha", "beta", "limit")}
            attributes["limit"] = attributes["limit"] or _NO_LIMIT
            inputs, outputs = cut(graph, marker)
            (rows, k), (count, *_) = inputs[1].shape, inputs[3].shape
            biased = len(inputs) > _WITHOUT_BIASES
            if rows * k <= count and _is_small(rows * k, inputs[3:5]):
                call(graph, experts("ExpertsGathered", biased), inputs, outputs, **attributes)
                continue
            block = block_rows(rows, k, count)
            attributes |= {"block": [block], "blocks": [most_blocks(rows, k, count, block)]}
            name = "ExpertsInEveryBlock" if self.every_block else "ExpertsInBlocks"
            call(graph, experts(name, biased), inputs, outputs, **attributes)


def _is_small(choices: int, weights: list[gs.Tensor]) -> bool:
    """Whether the choices' weights may be copied at once."""
    one_expert = sum(prod(tensor.shape[1:]) for tensor in weights)
    return bool(choices * one_expert <= _GATHERED_VALUES)


def block_rows(rows: int, k: int, experts: int) -> int:
    """Rows of a block: about twice as many as choose an expert, and no more than there are."""
    mean = rows * k / experts
    return min(rows, _LARGEST_BLOCK, 1 << max(0, int(np.ceil(np.log2(2 * mean)))))


def most_blocks(rows: int, k: int, experts: int, block: int) -> int:
    """Most blocks that any choice of k different experts for each row can fill."""
    chosen = min(experts, rows * k)
    return min((rows * k + chosen * (block - 1)) // block, experts * -(-rows // block))
