"""Removes nodes that move no data.

    Transpose that only moves axes of size 1    -> Reshape
    Reshape of a Reshape                        -> one Reshape

A decode step has three transposes and six reshapes in each layer. With one token none of them moves
data, but each node costs some microseconds, as much as a small product.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import int64s, producer


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
                while (before := producer(found.inputs[0])) and before.op == "Reshape":
                    found.inputs[0] = before.inputs[0]
        graph.cleanup(remove_unused_graph_inputs=False)


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
