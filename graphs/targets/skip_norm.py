"""Fuses a residual's sum and the following norm into one operator of ONNX Runtime.

   sum = Add(x, residual); normalized = RMSNormalization(sum, scale)
-> normalized, sum = SkipSimplifiedLayerNormalization(x, residual, scale)
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import cut, node
from snapexport.graphs.targets.group_query_attention import MICROSOFT


@dataclass(frozen=True)
class SkipNorm:
    """Applies to fp32 alone: in 16 bits the operator may skip the rounding of the sum."""

    def apply(self, graph: gs.Graph) -> None:
        for norm in [n for n in graph.nodes if n.op == "RMSNormalization"]:
            added = norm.inputs[0].inputs[0] if norm.inputs[0].inputs else None
            if added is not None and added.op == "Add" and _is_residual(added, norm):
                _rewrite(graph, added, norm)


def _is_residual(added: gs.Node, norm: gs.Node) -> bool:
    """Whether the sum is fp32 without broadcast, and the norm is over the last axis."""
    one, other = added.inputs
    scale = norm.inputs[1]
    return (
        one.dtype == np.float32
        and one.shape is not None
        and len(one.shape) == 3
        and one.shape == other.shape
        and len(scale.shape) == 1
        and norm.attrs.get("axis", -1) == -1
    )


def _rewrite(graph: gs.Graph, added: gs.Node, norm: gs.Node) -> None:
    epsilon = norm.attrs["epsilon"]
    summands, (total,) = cut(graph, added)
    (_, scale), (normalized,) = cut(graph, norm)
    outputs = [normalized, gs.Variable.empty(), gs.Variable.empty(), total]
    operator = "SkipSimplifiedLayerNormalization"
    node(graph, operator, [*summands, scale], outputs, domain=MICROSOFT, epsilon=epsilon)
