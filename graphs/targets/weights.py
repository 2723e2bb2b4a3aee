"""Reads weights as ONNX Runtime's operators do, and integers by standard operators too.

FusedMatMul reads a weight [N,K] in place. Otherwise the runtime keeps a transposed copy of every
weight in memory.

    1 to 7 rows, or more than 32    FusedMatMul(x, W, transB)
    8 to 32 rows                    Transpose(FusedMatMul(W, x, transB))

The runtime rearranges its second operand in each run. In a decode batch that is most of the work if
the operand is W, and little if it is x: 16 rows by [4096, 1024] took 2.0 ms instead of 3.3, as fast
as with a rearranged copy of W in memory.

MatMulNBits reads integers as they are stored. A block's minimum m adds m times the sum of the
block's x:

    x W^T = MatMulNBits(x, q, scales) + sums(x) minima^T

A lookup gathers rows of integers and dequantizes them. A head that is tied to the embedding reads
the same integers, in MatMulNBits' layout, which GatherBlockQuantized does not take.
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from snapexport.graphs.markers import BLOCK_GATHER, BLOCK_MATMUL, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, linear_layers, node
from snapexport.graphs.targets.group_query_attention import MICROSOFT

_FEW = range(8, 33)
"""Numbers of rows for which W as first operand is faster on a CPU. Fewer: equal. More: slower."""


@dataclass(frozen=True)
class FusedMatMul:
    """Every linear layer of the model."""

    def apply(self, graph: gs.Graph) -> None:
        for product, weight in linear_layers(graph):
            _replace_linear(graph, product, weight)


def _replace_linear(graph: gs.Graph, product: gs.Node, weight: gs.Tensor) -> None:
    (rows, _), (out,) = cut(graph, product)
    *leading, width = rows.shape
    # 16-bit builds run on a GPU, which rearranges nothing.
    if math.prod(leading) not in _FEW or rows.dtype != np.float32:
        _multiply(graph, [rows, weight], [out])
        return
    (flat,) = node(graph, "Reshape", [rows, int64s(graph, -1, width)])
    columns = node(graph, "Transpose", _multiply(graph, [weight, flat]), perm=[1, 0])
    node(graph, "Reshape", [*columns, int64s(graph, *leading, weight.shape[0])], [out])


def _multiply(
    graph: gs.Graph, factors: list[gs.Tensor], outputs: list[gs.Tensor] | None = None
) -> list[gs.Tensor]:
    """factors[0] @ factors[1]^T."""
    return node(graph, "FusedMatMul", factors, outputs, domain=MICROSOFT, transB=1)


_INT8_PRODUCTS = 4
"""MatMulNBits' accuracy_level that rounds activations to 8 bits, block by block. Products are then
integer products: one token takes a third to a quarter of the time of fp32."""


@dataclass(frozen=True)
class MatMulNBits:
    """Every linear layer whose weights are integers.

    fused: the runtime has FusedMatMul, which reads minima as they are stored.
    """

    fused: bool = True

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, BLOCK_MATMUL)]:
            _replace_product(graph, marker, fused=self.fused)


def _replace_product(graph: gs.Graph, marker: gs.Node, *, fused: bool) -> None:
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


@dataclass(frozen=True)
class BlockGather:
    """Every embedding whose weights are integers."""

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, BLOCK_GATHER)]:
            _replace_lookup(graph, marker)


def _replace_lookup(graph: gs.Graph, marker: gs.Node) -> None:
    bits, block = marker.attrs["bits"], marker.attrs["block_size"]
    (indices, *parts), (out,) = cut(graph, marker)
    q, scales, zeros, minima = [*parts, *[gs.Variable.empty()] * (4 - len(parts))]
    _, blocks, _ = q.shape

    def of_rows(part: gs.Tensor, last: int) -> gs.Tensor:
        """The rows of a part, as [..., blocks, last]."""
        (rows,) = node(graph, "Gather", [part, indices], axis=0)
        shape = int64s(graph, *indices.shape, blocks, last)
        return node(graph, "Reshape", [rows, shape])[0]

    (rows,) = node(graph, "Gather", [q, indices], axis=0)
    integers = _integers(graph, rows, bits, int64s(graph, *indices.shape, blocks, block), scales)
    if zeros.is_empty():
        zero: gs.Tensor = gs.Constant(fresh(graph, "const"), np.array(1 << bits - 1, scales.dtype))
    else:
        (some,) = node(graph, "Gather", [zeros, indices], axis=0)
        every = int64s(graph, *indices.shape, zeros.shape[1] * 8 // bits)
        unpacked = _integers(graph, some, bits, every, scales)
        ends = [int64s(graph, 0), int64s(graph, blocks), int64s(graph, -1)]
        (cut_off,) = node(graph, "Slice", [unpacked, *ends])
        (zero,) = node(graph, "Unsqueeze", [cut_off, int64s(graph, -1)])
    (centred,) = node(graph, "Sub", [integers, zero])
    (values,) = node(graph, "Mul", [centred, of_rows(scales, 1)])
    if not minima.is_empty():
        (values,) = node(graph, "Add", [values, of_rows(minima, 1)])
    node(graph, "Reshape", [values, int64s(graph, *indices.shape, blocks * block)], [out])


def _integers(
    graph: gs.Graph, packed: gs.Tensor, bits: int, shape: gs.Tensor, like: gs.Tensor
) -> gs.Tensor:
    """Bytes as integers of `bits` bits, in the type of `like`."""
    if bits == 4:
        # ONNX Runtime's CUDA provider has no kernels that take bits out of a byte.
        sixteen = gs.Constant(fresh(graph, "const"), np.array(16, np.int32))
        (byte,) = node(graph, "Cast", [packed], to=onnx.TensorProto.INT32)
        halves = [node(graph, op, [byte, sixteen])[0] for op in ("Mod", "Div")]
        pair = [node(graph, "Unsqueeze", [one, int64s(graph, -1)])[0] for one in halves]
        (packed,) = node(graph, "Concat", pair, axis=-1)
    (unpacked,) = node(graph, "Reshape", [packed, shape])
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(like.dtype))
    return node(graph, "Cast", [unpacked], to=to)[0]
