"""Writes products with weights as Gemm, which takes a weight [N,K] as it lies.

A trace has MatMul(x, Transpose(weight)). Where the weight is an input of the graph, the builder of
TensorRT for RTX 1.7 copies it in transposed form, in every run: 1.7 GB in a decode step of
Llama-3.1-8B's shapes with two layers. Of Gemm it makes a product that reads the weight in place.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import cut, int64s, linear_layers, node


@dataclass(frozen=True)
class LinearGemm:
    """Replaces x [...,K] @ Transpose(weight [N,K]) by a Gemm over the rows of x."""

    def apply(self, graph: gs.Graph) -> None:
        for product, weight in linear_layers(graph):
            (x, _), (out,) = cut(graph, product)
            *leading, width = x.shape
            rows = node(graph, "Reshape", [x, int64s(graph, -1, width)])
            products = node(graph, "Gemm", [*rows, _apart(graph, weight)], transB=1)
            shape = int64s(graph, *leading, weight.shape[0])
            node(graph, "Reshape", [*products, shape], [out])


def _apart(graph: gs.Graph, weight: gs.Constant) -> gs.Tensor:
    """The weight, under a name of its own if it is an embedding table too.

    Of an input that a Gather reads as well, the builder makes a copy for the product.
    """
    if not any(reader.op == "Gather" for reader in weight.outputs):
        return weight
    tensor: gs.Tensor = weight
    for shape in ((1, *weight.shape), weight.shape):
        (tensor,) = node(graph, "Reshape", [tensor, int64s(graph, *shape)])
    return tensor
