"""Reads weights as ONNX Runtime's operators do, and integers by standard operators too.

FusedMatMul reads a weight [N,K] in place. Otherwise the runtime keeps a transposed copy of every
weight in memory.

    2 to 32 rows, from 768 columns on; else 8 to 32    Transpose(FusedMatMul(W, x, transB))
    other numbers of rows                              FusedMatMul(x, W, transB)

The runtime rearranges its second operand in each run. In a decode batch that is most of the work if
the operand is W, and little if it is x: 16 rows by [4096, 1024] took 2.0 ms instead of 3.3, as fast
as with a rearranged copy of W. 2 to 7 rows take .56 to .9 of the time by 896 columns or more.

MatMulNBits reads integers as they are stored. A block's minimum m adds m times the sum of the
block's x:

    x W^T = MatMulNBits(x, q, scales) + sums(x) minima^T

It rounds x to 8 bits, block by block, unless the product is exact:

    4 bits    products of floats, which are also the faster ones for many rows
    8 bits    x as the sum of what rounding keeps and of the rest: two rows in the place of one

A lookup gathers rows of integers and dequantizes them. A head that is tied to the embedding reads
the same integers, in MatMulNBits' layout, which GatherBlockQuantized does not take.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from snapexport.graphs.markers import BLOCK_GATHER, BLOCK_MATMUL, TRACE_DOMAIN
from snapexport.graphs.passes.base import MICROSOFT, cut, fresh, int64s, linear_layers, node

_FEW, _FEW_OF_NARROW, _NARROW = range(2, 33), range(8, 33), 768
"""Numbers of rows for which W as first operand is faster on a CPU, and columns of a narrow W."""


@dataclass(frozen=True)
class FusedMatMul:
    """Every linear layer of the model."""

    def apply(self, graph: gs.Graph) -> None:
        for product, weight in linear_layers(graph):
            _replace_linear(graph, product, weight)


def _replace_linear(graph: gs.Graph, product: gs.Node, weight: gs.Tensor) -> None:
    (rows, _), (out,) = cut(graph, product)
    *leading, width = rows.shape
    few = _FEW if width >= _NARROW else _FEW_OF_NARROW
    # 16-bit builds run on a GPU, which rearranges nothing.
    if math.prod(leading) not in few or rows.dtype != np.float32:
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


_FLOATS, _INT8 = 1, 4
"""MatMulNBits' accuracy_level. With integers of 4 bits one row takes 1.6 to 3 times as long in
floats, with 8 bits 15 times."""
_MANY = 64
"""Rows from which on products of 4 bits are faster in floats: 128 rows took .53 to .73 of the
time."""
_OPENVINO_GROUP = 32
_LARGEST = 127
_SMALLEST_SCALE = 1e-30


@dataclass(frozen=True)
class MatMulNBits:
    """Every linear layer whose weights are integers.

    openvino: the runtime has no FusedMatMul and no products of floats, and it rounds groups of 32
    columns, whatever the weights' blocks are.
    """

    openvino: bool = False

    def apply(self, graph: gs.Graph) -> None:
        split: dict[tuple[str, int], gs.Tensor] = {}
        for marker in [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, BLOCK_MATMUL)]:
            self._replace(graph, marker, split)

    def _replace(
        self, graph: gs.Graph, marker: gs.Node, split: dict[tuple[str, int], gs.Tensor]
    ) -> None:
        """split: what `_two_parts` made already, which several products read."""
        exact = marker.attrs.get("exact", 0)
        sizes = {name: marker.attrs[name] for name in ("N", "K", "bits", "block_size")}
        block = sizes["block_size"]
        group = _OPENVINO_GROUP if self.openvino else block
        (x, *parts), (out,) = cut(graph, marker)
        # The trace has no shape of a product that a bias is added to.
        rows = (out.shape or x.shape)[:-1]
        q, scales, zeros, minima, order = [*parts, *[gs.Variable.empty()] * (5 - len(parts))]
        if not order.is_empty():
            (x,) = node(graph, "Gather", [x, order], axis=-1)
        floats = sizes["bits"] == 4 and (exact or math.prod(rows) >= _MANY)
        attributes = sizes | {"accuracy_level": _FLOATS if floats else _INT8}
        weights = [q, scales] if zeros.is_empty() else [q, scales, zeros]
        products = [out] if minima.is_empty() else [gs.Variable(fresh(graph, "product"))]
        # A GPU rounds nothing, and runs builds in 16 bits.
        in_parts = exact and (self.openvino or not floats) and scales.dtype == np.float32
        if in_parts and sizes["K"] % group == 0:
            key = x.name, group
            if key not in split:
                split[key] = _two_parts(graph, x, rows, group)
            both = _nbits(graph, split[key], weights, None, attributes)
            node(graph, "ReduceSum", [*both, int64s(graph, 0)], products, keepdims=0)
        else:
            _nbits(graph, x, weights, products, attributes)
        if not minima.is_empty():
            added = self._of_minima(graph, x, minima, (*rows, minima.shape[1], block))
            node(graph, "Add", [*products, *added], [out])

    def _of_minima(
        self, graph: gs.Graph, x: gs.Tensor, minima: gs.Tensor, shape: tuple[int, ...]
    ) -> list[gs.Tensor]:
        """shape: x in blocks."""
        (in_blocks,) = node(graph, "Reshape", [x, int64s(graph, *shape)])
        (sums,) = node(graph, "ReduceSum", [in_blocks, int64s(graph, -1)], keepdims=0)
        if not self.openvino:
            return _multiply(graph, [sums, minima])
        (turned,) = node(graph, "Transpose", [minima], perm=[1, 0])
        return node(graph, "MatMul", [sums, turned])


def _nbits(
    graph: gs.Graph,
    x: gs.Tensor,
    weights: list[gs.Tensor],
    outputs: list[gs.Tensor] | None,
    attributes: Mapping[str, int],
) -> list[gs.Tensor]:
    return node(graph, "MatMulNBits", [x, *weights], outputs, domain=MICROSOFT, **attributes)


def _two_parts(graph: gs.Graph, x: gs.Tensor, rows: tuple[int, ...], group: int) -> gs.Tensor:
    """[2,...,K]: x rounded to 8 bits by groups of columns, and the rest."""
    (in_blocks,) = node(graph, "Reshape", [x, int64s(graph, *rows, -1, group)])
    (sizes,) = node(graph, "Abs", [in_blocks])
    (largest,) = node(graph, "ReduceMax", [sizes, int64s(graph, -1)], keepdims=1)
    least, most = (
        gs.Constant(fresh(graph, "const"), np.array(value, np.float32))
        for value in (_SMALLEST_SCALE, _LARGEST)
    )
    (steps,) = node(graph, "Div", [largest, most])
    (scale,) = node(graph, "Max", [steps, least])
    (rounded,) = node(graph, "Round", node(graph, "Div", [in_blocks, scale]))
    (kept,) = node(graph, "Mul", [rounded, scale])
    (rest,) = node(graph, "Sub", [in_blocks, kept])
    both = [node(graph, "Unsqueeze", [one, int64s(graph, 0)])[0] for one in (kept, rest)]
    (joined,) = node(graph, "Concat", both, axis=0)
    return node(graph, "Reshape", [joined, int64s(graph, 2, *rows, -1)])[0]


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
