"""Converts products with weights of integers (MatMulNBits), which stay where they are mapped.

OpenVINO's own conversion takes weights that the graph holds, and copies them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset14 as op
from numpy.typing import NDArray
from openvino.frontend.onnx import ConversionExtension

from snapexport.runtime.openvino.values import Value, ints, optional

_TYPES = {4: ov.Type.u4, 8: ov.Type.u8}


class IntegerProducts:
    """The products of one graph. bytes_of: a weight's bytes by name, if it lies in a file."""

    def __init__(self, bytes_of: Callable[[str], NDArray[np.uint8]]) -> None:
        self._bytes_of = bytes_of

    def extension(self) -> ConversionExtension:
        """What OpenVINO's reader is given."""
        return ConversionExtension("MatMulNBits", "com.microsoft", self._product)

    def _product(self, node: Any) -> list[Value]:
        rows, width, bits, block = (
            node.get_attribute(name) for name in ("N", "K", "bits", "block_size")
        )
        blocks = -(-width // block)
        scales, zeros = node.get_input(2), optional(node, 3)
        weights = self._constant(node.get_input(1), bits, rows, blocks, block)
        if zeros is None:
            zero = op.constant(np.array(1 << bits - 1, np.uint8))
        else:
            zero = self._constant(zeros, bits, rows, blocks, 1)
        # Of these operators OpenVINO knows that they undo rounding: it multiplies integers.
        kind = scales.get_element_type()
        centred = op.subtract(op.convert(weights, kind), op.convert(zero, kind))
        scaled = op.multiply(centred, op.reshape(scales, ints(rows, blocks, 1), False))
        whole = op.reshape(scaled, ints(rows, blocks * block), False)
        if blocks * block > width:
            whole = op.slice(whole, ints(0), ints(width), ints(1), ints(1))
        return [op.matmul(node.get_input(0), whole, False, True).output(0)]

    def _constant(self, value: Value, bits: int, rows: int, blocks: int, each: int) -> Value:
        """The integers [rows,blocks,each] of a weight."""
        node = value.get_node()
        in_file = node.get_type_name() != "Constant"
        name = node.get_friendly_name()
        raw = self._bytes_of(name) if in_file else np.array(node.get_data(), np.uint8).reshape(-1)
        if has_gaps := bool(blocks * each * bits % 8):  # a row ends amid a byte
            raw = _joined(raw.reshape(rows, -1), blocks * each)
        tensor = ov.Tensor(raw, ov.Shape([rows, blocks, each]), _TYPES[bits])
        return ov.op.Constant(tensor, shared_memory=in_file and not has_gaps).output(0)


def _joined(raw: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Rows of `count` integers of 4 bits, the lower half of a byte first, without gaps."""
    halves = np.stack([raw & 15, raw >> 4], -1).reshape(len(raw), -1)[:, :count].reshape(-1)
    halves = np.append(halves, np.zeros(len(halves) % 2, np.uint8))
    joined: NDArray[np.uint8] = halves[::2] | halves[1::2] << 4
    return joined
