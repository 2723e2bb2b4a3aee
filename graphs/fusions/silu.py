"""Fuses x * sigmoid(x), SiLU, which most MLPs put on their gates.

Mul(x, Sigmoid(x)) -> QuickGelu(x, alpha = 1)
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import MICROSOFT, cut, node


@dataclass(frozen=True)
class Silu:
    """Applies where nothing else reads the sigmoid."""

    def apply(self, graph: gs.Graph) -> None:
        for sigmoid in [n for n in graph.nodes if n.op == "Sigmoid"]:
            (x,), (gate,) = sigmoid.inputs, sigmoid.outputs
            readers = [*gate.outputs, *(one for one in graph.outputs if one is gate)]
            if len(readers) == 1 and _multiplies(readers[0], x, gate):
                (product,) = readers
                cut(graph, sigmoid)
                _, (out,) = cut(graph, product)
                node(graph, "QuickGelu", [x], [out], domain=MICROSOFT, alpha=1.0)


def _multiplies(found: gs.Node, x: gs.Tensor, gate: gs.Tensor) -> bool:
    one, other = (found.inputs[0], found.inputs[-1]) if found.op == "Mul" else (None, None)
    return (one is x and other is gate) or (one is gate and other is x)
