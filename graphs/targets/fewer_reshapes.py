"""Removes nodes that move no data.

    Transpose that only moves axes of size 1    -> Reshape
    Reshape of a Reshape                        -> one Reshape

A decode step has three transposes and six reshapes in each layer. With one token none of them moves
data, but each node costs some microseconds, as much as a small product.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import int64s


@dataclass(frozen=True)
class FewerReshapes:
    """Applies to the whole graph. It finds little in prefill, where transposes move data."""

    def apply(self, graph: gs.Graph) -> None:
        for node in graph.nodes:
            if node.op == "Transpose" and _moves_nothing(node):
                shape = [node.inputs[0].shape[axis] for axis in node.attrs["perm"]]
                node.op, node.attrs = "Reshape", {}
                node.inputs.append(int64s(graph, *shape))
        for node in graph.nodes:
            if _is_absolute(node):
                while (before := _producer(node)) and before.op == "Reshape":
                    node.inputs[0] = before.inputs[0]


def _moves_nothing(transpose: gs.Node) -> bool:
    """Whether the axes of size > 1 stay in order."""
    states = transpose.inputs[0]
    if isinstance(states, gs.Constant) or not _is_static(states.shape):
        return False
    axes = [axis for axis in transpose.attrs["perm"] if states.shape[axis] > 1]
    return axes == sorted(axes)


def _is_static(shape: object) -> bool:
    return isinstance(shape, list | tuple) and all(isinstance(size, int) for size in shape)


def _is_absolute(node: gs.Node) -> bool:
    """Whether it is a Reshape to a constant shape that copies no size from its input."""
    if node.op != "Reshape" or not isinstance(node.inputs[1], gs.Constant):
        return False
    return 0 not in node.inputs[1].values


def _producer(node: gs.Node) -> gs.Node | None:
    return node.inputs[0].inputs[0] if node.inputs[0].inputs else None
