"""Reads weights in the forms that TensorRT's parser and builder take: Gemm and DequantizeLinear.

A Gemm takes a weight [N,K] as it is stored. A trace has MatMul(x, Transpose(weight)). Where the
weight is an input of the graph, the builder of TensorRT for RTX 1.7 copies it in transposed form,
in every run: 1.7 GB in a decode step of Llama-3.1-8B's shapes with two layers. Of Gemm it makes a
product that reads the weight in place.

Integers are read by DequantizeLinear, block by block:

    product    x W^T = Gemm(x, DequantizeLinear(q, scales)) [+ sums(x) minima^T]
    of NVFP4   the same, of the scales DequantizeLinear(fp8, factor)
    lookup     Gather(DequantizeLinear(q, scales), indices), of which only the rows are dequantized
    experts    Experts, of dequantized stacks

The builder of TensorRT for RTX 1.7 multiplies with INT4 as it is stored. Weights of 8 bits, NVFP4
and experts it dequantizes as a whole in each run, all of them at its start, unless their scales
depend on the activations: max(scales, min(x, -65504)) is the scales, and comes when the layer is
due. The parser refuses constants that are negative or zero as scales, which GGUF files and empty
blocks have; after an Identity they are not constants.
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.markers import (
    BLOCK_EXPERTS,
    BLOCK_GATHER,
    BLOCK_MATMUL,
    EXPERTS,
    TRACE_DOMAIN,
)
from snapexport.graphs.passes.base import cut, fresh, int64s, linear_layers, node

_BELOW_ALL_SCALES = -65504.0
"""The lowest fp16: scales of weights are far above it."""


@dataclass(frozen=True)
class Dequantized:
    """Every product, lookup and layer of experts whose weights are integers."""

    def apply(self, graph: gs.Graph) -> None:
        made = {BLOCK_MATMUL: _product, BLOCK_GATHER: _lookup, BLOCK_EXPERTS: _experts}
        for marker in [n for n in graph.nodes if n.domain == TRACE_DOMAIN and n.op in made]:
            made[marker.op](graph, marker)


def _product(graph: gs.Graph, marker: gs.Node) -> None:
    wide = marker.attrs["bits"] > 4
    (x, *parts), (out,) = cut(graph, marker)
    q, scales, _, minima, order, factor = _pad(parts, 6)
    *leading, width = x.shape
    (rows,) = node(graph, "Reshape", [x, int64s(graph, -1, width)])
    if not order.is_empty():
        (rows,) = node(graph, "Gather", [rows, order], axis=-1)
    if factor.is_empty():
        weight = _dequantize(graph, q, scales, due=rows if wide else None)
    else:
        weight = _of_floats(graph, q, scales, factor, rows)
    product = node(graph, "Gemm", [rows, weight], transB=1)
    if not minima.is_empty():
        blocks = minima.shape[1]
        shape = int64s(graph, -1, blocks, width // blocks)
        (in_blocks,) = node(graph, "Reshape", [rows, shape])
        sums = node(graph, "ReduceSum", [in_blocks, int64s(graph, -1)], keepdims=0)
        product = node(graph, "Gemm", [*sums, minima, *product], transB=1)
    node(graph, "Reshape", [*product, int64s(graph, *leading, q.shape[0])], [out])


def _lookup(graph: gs.Graph, marker: gs.Node) -> None:
    (indices, *parts), (out,) = cut(graph, marker)
    q, scales, _, minima = _pad(parts, 4)
    table = _dequantize(graph, q, scales)
    if minima.is_empty():
        node(graph, "Gather", [table, indices], [out], axis=0)
        return
    (rows,) = node(graph, "Gather", [table, indices], axis=0)
    (lowest,) = node(graph, "Gather", [minima, indices], axis=0)
    (columns,), blocks = q.shape[1:], minima.shape[1]
    shape = int64s(graph, *indices.shape, blocks, columns // blocks)
    (in_blocks,) = node(graph, "Reshape", [rows, shape])
    (of_blocks,) = node(graph, "Unsqueeze", [lowest, int64s(graph, -1)])
    (values,) = node(graph, "Add", [in_blocks, of_blocks])
    node(graph, "Reshape", [values, int64s(graph, *indices.shape, columns)], [out])


def _experts(graph: gs.Graph, marker: gs.Node) -> None:
    of_integers = ("gate_up_bits", "down_bits", "block_size")
    attributes = {name: one for name, one in marker.attrs.items() if name not in of_integers}
    inputs, outputs = cut(graph, marker)
    states, index, weights, *stored = inputs
    gate_up, of_gate_up, _, down, of_down, _, *biases = _pad(stored, 6)
    stacks = [
        _dequantize(graph, q, scales, due=states)
        for q, scales in ((gate_up, of_gate_up), (down, of_down))
    ]
    inputs = [states, index, weights, *stacks, *biases]
    node(graph, EXPERTS, inputs, outputs, domain=TRACE_DOMAIN, **attributes)


def _dequantize(
    graph: gs.Graph, q: gs.Constant, scales: gs.Constant, due: gs.Tensor | None = None
) -> gs.Tensor:
    """The weight. due: activations before which it is not dequantized; None: whenever."""
    if due is None:
        (read,) = node(graph, "Identity", [scales])
    else:
        read = _wait(graph, scales, due)
    made = gs.Variable(fresh(graph, "weight"), scales.dtype, q.shape)
    blocks = {"axis": len(q.shape) - 1, "block_size": q.shape[-1] // scales.shape[-1]}
    return node(graph, "DequantizeLinear", [q, read], [made], **blocks)[0]


def _of_floats(
    graph: gs.Graph, q: gs.Constant, scales: gs.Constant, factor: gs.Constant, due: gs.Tensor
) -> gs.Tensor:
    """The weight of NVFP4, rounded once, to the type of the activations."""
    in_fp32 = node(graph, "DequantizeLinear", [scales, _wait(graph, factor, due)])
    blocks = {"axis": 1, "block_size": q.shape[1] // scales.shape[1]}
    return node(
        graph, "CastLike", [*node(graph, "DequantizeLinear", [q, *in_fp32], **blocks), due]
    )[0]


def _wait(graph: gs.Graph, scales: gs.Tensor, due: gs.Tensor) -> gs.Tensor:
    """The scales, once the activations are there."""
    limit = gs.Constant(fresh(graph, "const"), np.array(_BELOW_ALL_SCALES, np.float32))
    (lowest,) = node(graph, "ReduceMin", [due], keepdims=0)
    below, low = (node(graph, "CastLike", [one, scales])[0] for one in (limit, lowest))
    (least,) = node(graph, "Min", [low, below])
    return node(graph, "Max", [scales, least])[0]


def _pad(parts: list[gs.Tensor], count: int) -> list[gs.Tensor]:
    """The parts, and nothing in the place of those that were left out at the end."""
    return [*parts, *[gs.Variable.empty()] * (count - len(parts))]


@dataclass(frozen=True)
class LinearGemm:
    """Replaces x [...,K] @ Transpose(weight [N,K]) by a Gemm over the rows of x."""

    def apply(self, graph: gs.Graph) -> None:
        for product, weight in linear_layers(graph):
            (x, _), (out,) = cut(graph, product)
            *leading, width = x.shape
            rows = node(graph, "Reshape", [x, int64s(graph, -1, width)])
            products = node(graph, "Gemm", [*rows, _separate(graph, weight)], transB=1)
            shape = int64s(graph, *leading, weight.shape[0])
            node(graph, "Reshape", [*products, shape], [out])


def _separate(graph: gs.Graph, weight: gs.Constant) -> gs.Tensor:
    """The weight, under a name of its own if it is an embedding table too.

    Of an input that a Gather reads as well, the builder makes a copy for the product.
    """
    if not any(reader.op == "Gather" for reader in weight.outputs):
        return weight
    tensor: gs.Tensor = weight
    for shape in ((1, *weight.shape), weight.shape):
        (tensor,) = node(graph, "Reshape", [tensor, int64s(graph, *shape)])
    return tensor
