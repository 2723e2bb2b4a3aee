"""Fuses a residual's sum and the following norm.

       sum = Add(x, residual); normalized = RMSNormalization(sum, scale)
    -> normalized, sum = SkipSimplifiedLayerNormalization(x, residual, scale)

ONNX Runtime 1.27 and newer adds up squares in fp32, whatever the types are. In 16 bits the operator
may normalize the sum before it is rounded, which is no less exact.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import MICROSOFT, cut, node, producer


@dataclass(frozen=True)
class SkipNorm:
    """Applies to sums without broadcast, and norms over the last axis."""

    def apply(self, graph: gs.Graph) -> None:
        for norm in [n for n in graph.nodes if n.op == "RMSNormalization"]:
            added = producer(norm.inputs[0])
            if added is not None and added.op == "Add" and _is_residual(added, norm):
                _rewrite(graph, added, norm)


def _is_residual(added: gs.Node, norm: gs.Node) -> bool:
    one, other = added.inputs
    scale = norm.inputs[1]
    return (
        one.shape is not None
        and len(one.shape) == 3
        and one.shape == other.shape
        and len(scale.shape) == 1
        and scale.dtype == one.dtype
        and norm.attrs.get("axis", -1) == -1
    )


def _rewrite(graph: gs.Graph, added: gs.Node, norm: gs.Node) -> None:
    epsilon = norm.attrs["epsilon"]
    summands, (total,) = cut(graph, added)
    (_, scale), (normalized,) = cut(graph, norm)
    outputs = [normalized, gs.Variable.empty(), gs.Variable.empty(), total]
    operator = "SkipSimplifiedLayerNormalization"
    node(graph, operator, [*summands, scale], outputs, domain=MICROSOFT, epsilon=epsilon)
