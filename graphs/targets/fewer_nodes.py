"""Removes nodes that move no data, and fuses a residual's sum and the following norm.

    Transpose that only moves axes of size 1    -> Reshape
    Reshape of a Reshape                        -> one Reshape

A decode step has three transposes and six reshapes in each layer. With one token none of them moves
data, but each node costs some microseconds, as much as a small product. In ONNX Runtime also:

       sum = Add(x, residual); normalized = RMSNormalization(sum, scale)
    -> normalized, sum = SkipSimplifiedLayerNormalization(x, residual, scale)
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import cut, int64s, node
from snapexport.graphs.targets.group_query_attention import MICROSOFT


@dataclass(frozen=True)
class FewerReshapes:
    """Applies to the whole graph. It finds little in prefill, where transposes move data."""

    def apply(self, graph: gs.Graph) -> None:
        for found in graph.nodes:
            if found.op == "Transpose" and _moves_nothing(found):
                shape = [found.inputs[0].shape[axis] for axis in found.attrs["perm"]]
                found.op, found.attrs = "Reshape", {}
                found.inputs.append(int64s(graph, *shape))
        for found in graph.nodes:
            if _is_absolute(found):
                while (before := _producer(found)) and before.op == "Reshape":
                    found.inputs[0] = before.inputs[0]


def _moves_nothing(transpose: gs.Node) -> bool:
    """Whether the axes of size > 1 stay in order. A Reshape takes a size of 0 for another one."""
    states = transpose.inputs[0]
    if isinstance(states, gs.Constant) or not _is_static(states.shape) or 0 in states.shape:
        return False
    axes = [axis for axis in transpose.attrs["perm"] if states.shape[axis] > 1]
    return axes == sorted(axes)


def _is_static(shape: object) -> bool:
    return isinstance(shape, list | tuple) and all(isinstance(size, int) for size in shape)


def _is_absolute(found: gs.Node) -> bool:
    """Whether it is a Reshape to a constant shape that copies no size from its input."""
    if found.op != "Reshape" or not isinstance(found.inputs[1], gs.Constant):
        return False
    return 0 not in found.inputs[1].values


def _producer(found: gs.Node) -> gs.Node | None:
    return found.inputs[0].inputs[0] if found.inputs[0].inputs else None


@dataclass(frozen=True)
class SkipNorm:
    """Applies to fp32 only: in 16 bits the operator may skip the rounding of the sum."""

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
