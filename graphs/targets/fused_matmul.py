"""x @ Transpose(W) to ONNX Runtime's FusedMatMul, which reads the checkpoint's [N,K] in place.

Left as it is, the runtime would keep a transposed copy of every weight in memory.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import SurgeryError

_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class FusedMatMul:
    """Every linear layer of the model."""

    def apply(self, graph: gs.Graph) -> None:
        transposes = [n for n in graph.nodes if n.op == "Transpose" and _is_weight(n.inputs[0])]
        for transpose in transposes:
            weight, transposed = transpose.inputs[0], transpose.outputs[0]
            for product in list(transposed.outputs):
                if product.op != "MatMul" or product.inputs[1] is not transposed:
                    raise SurgeryError(f"{product.op} reads the transposed weight {weight.name}")
                product.op, product.domain = "FusedMatMul", _MICROSOFT
                product.attrs["transB"] = 1
                product.inputs[1] = weight


def _is_weight(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and len(tensor.shape) == 2
