"""Replaces BlockGather by standard operators: rows of integers are looked up, and dequantized.

A head that is tied to the embedding reads the same integers, in MatMulNBits' layout, which
GatherBlockQuantized does not take.
"""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from snapexport.graphs.markers import BLOCK_GATHER, TRACE_DOMAIN
from snapexport.graphs.passes.base import cut, fresh, int64s, node


@dataclass(frozen=True)
class BlockGather:
    """Every embedding whose weights are integers."""

    def apply(self, graph: gs.Graph) -> None:
        for marker in [n for n in graph.nodes if (n.domain, n.op) == (TRACE_DOMAIN, BLOCK_GATHER)]:
            _replace(graph, marker)


def _replace(graph: gs.Graph, marker: gs.Node) -> None:
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
