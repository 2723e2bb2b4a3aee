"""BlockMatMul to ONNX Runtime's MatMulNBits, which multiplies 4-bit weights as they are stored."""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.markers import BLOCK_MATMUL, TRACE_DOMAIN

_INT8_PRODUCTS = 4
"""MatMulNBits' accuracy_level: activations are rounded to 8 bits, block by block. The sums of
products are integers then, at 3 to 4 times the speed of one token's fp32 products."""


@dataclass(frozen=True)
class MatMulNBits:
    """Every linear layer whose weights have 4 bits."""

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, BLOCK_MATMUL)]:
            marker.op, marker.domain = "MatMulNBits", "com.microsoft"
            marker.attrs |= {"bits": 4, "accuracy_level": _INT8_PRODUCTS}
