"""Replaces BlockMatMul by ONNX Runtime's MatMulNBits, which reads integers as they are stored.

A block's minimum m adds m times the sum of the block's x:

    x W^T = MatMulNBits(x, q, scales) + sums(x) minima^T
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.markers import BLOCK_MATMUL, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, int64s, node
from snapexport.graphs.targets.group_query_attention import MICROSOFT

_INT8_PRODUCTS = 4
"""MatMulNBits' accuracy_level that rounds activations to 8 bits, block by block. Products are then
integer products: one token takes a third to a quarter of the time of fp32."""


@dataclass(frozen=True)
class MatMulNBits:
    """Every linear layer whose weights are integers.

    fused: the runtime has FusedMatMul, which reads minima as they lie.
    """

    fused: bool = True

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, BLOCK_MATMUL)]:
            _replace(graph, marker, fused=self.fused)


def _replace(graph: gs.Graph, marker: gs.Node, *, fused: bool) -> None:
    sizes = {name: marker.attrs[name] for name in ("N", "K", "bits", "block_size")}
    (x, *parts), (out,) = cut(graph, marker)
    # The trace has no shape of a product that a bias is added to.
    rows = (out.shape or x.shape)[:-1]
    q, scales, zeros, minima, order = [*parts, *[gs.Variable.empty()] * (5 - len(parts))]
    if not order.is_empty():
        (x,) = node(graph, "Gather", [x, order], axis=-1)
    inputs = [x, q, scales] if zeros.is_empty() else [x, q, scales, zeros]
    attributes = sizes | {"accuracy_level": _INT8_PRODUCTS}
    if minima.is_empty():
        node(graph, "MatMulNBits", inputs, [out], domain=MICROSOFT, **attributes)
        return
    (product,) = node(graph, "MatMulNBits", inputs, domain=MICROSOFT, **attributes)
    blocks, block = minima.shape[1], sizes["block_size"]
    (in_blocks,) = node(graph, "Reshape", [x, int64s(graph, *rows, blocks, block)])
    (sums,) = node(graph, "ReduceSum", [in_blocks, int64s(graph, -1)], keepdims=0)
    if fused:
        (added,) = node(graph, "FusedMatMul", [sums, minima], domain=MICROSOFT, transB=1)
    else:
        (turned,) = node(graph, "Transpose", [minima], perm=[1, 0])
        (added,) = node(graph, "MatMul", [sums, turned])
    node(graph, "Add", [product, added], [out])
