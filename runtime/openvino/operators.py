"""Converts TopK and products with weights of integers; helpers of all conversions.

The weights of MatMulNBits stay where they are mapped. OpenVINO's own conversion takes weights that
the graph holds, and copies them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset14 as op
from numpy.typing import NDArray
from openvino.frontend.onnx import ConversionExtension

Value = Any
"""An output of a node of OpenVINO's."""

_TYPES = {4: ov.Type.u4, 8: ov.Type.u8}


def ints(*values: int) -> Value:
    """Int64 [n]."""
    return op.constant(np.array(values, np.int64)).output(0)


def scalar(value: float, like: Value) -> Value:
    """A scalar of another value's type."""
    return op.constant(value, like.get_element_type()).output(0)


def size(value: Value, axis: int) -> int:
    """A dimension that is known."""
    return int(value.get_partial_shape()[axis].get_length())


def identity(value: Value | None) -> Any:
    """A key that distinguishes a value from others of its graph; None of None."""
    return value and (value.get_node().get_name(), value.get_index())


def optional(node: Any, at: int) -> Value | None:
    """An input that may be absent."""
    if at >= node.get_input_size():
        return None
    value = node.get_input(at)
    return None if value.get_node().get_type_name() == "NullNode" else value


def _top_k(node: Any) -> list[Value]:
    """Among equal values the lower index comes first, unless the order is left open."""
    if not node.get_attribute("sorted", 1):
        return _top_set(node)
    mode = "max" if node.get_attribute("largest", 1) else "min"
    axis, count = node.get_attribute("axis", -1), _count(node)
    values = node.get_input(0)
    top = op.topk(values, count, axis, mode, "value", index_element_type="i64", stable=True)
    return list(top.outputs())


def _top_set(node: Any) -> list[Value]:
    """The highest along the last axis, by index. The first of those that equal the lowest."""
    values, count = node.get_input(0), _count(node)
    shape = values.get_partial_shape()
    size = shape[len(shape) - 1].get_length()
    top = op.topk(values, count, -1, "max", "value", index_element_type="i64").output(0)
    least = op.reduce_min(top, ints(-1), True)
    above, equal = op.greater(values, least), op.equal(values, least)
    room = op.subtract(count, op.reduce_sum(_numbers(above), ints(-1), True))
    nth = op.cumsum(_numbers(equal), op.constant(np.int64(-1)))
    kept = op.logical_or(above, op.logical_and(equal, op.less_equal(nth, room)))
    # Each place has a number of its own, so that none of these are equal.
    places = op.constant(np.arange(size, 0, -1, dtype=np.int32))
    order = op.select(kept, places, op.constant(np.int32(0)))
    chosen = op.topk(order, count, -1, "max", "value", index_element_type="i64").output(1)
    return [op.gather_elements(values, chosen, -1).output(0), chosen]


def _count(node: Any) -> Any:
    return op.reshape(node.get_input(1), ints(), False)


def _numbers(truths: Any) -> Any:
    return op.convert(truths, "i64")


TOP_K = ConversionExtension("TopK", "", _top_k)


def forget_ties(model: Any) -> None:
    """Let each TopK whose indices nothing reads sort as is fastest: ties take OpenVINO long."""
    for node in model.get_ops():
        if node.get_type_name() == "TopK" and not node.output(1).get_target_inputs():
            node.set_attribute("stable", False)


def turn_products(model: Any) -> None:
    """Put B @ turned A in the place of turned (A @ turned B), where A is a vote's keys.

    ONNX Runtime would copy keys to turn them. OpenVINO reads them turned, and would take half of a
    compress step to turn the product.
    """
    for turned in model.get_ordered_ops():
        product = _before_turn(turned)
        if product and product.get_type_name() == "MatMul":
            first, second = product.input_values()
            is_plain = not any(product.get_attributes().values())
            if is_plain and (columns := _before_turn(second.get_node())):
                out = op.matmul(columns, first, False, True).output(0)
                for reader in turned.output(0).get_target_inputs():
                    reader.replace_source_output(out)


def _before_turn(node: Any) -> Any:
    """The matrices that a node turns; None if it does something else."""
    if node.get_type_name() != "Transpose":
        return None
    states, order = (value.get_node() for value in node.input_values())
    is_constant = order.get_type_name() == "Constant"
    return states if is_constant and [*order.get_data()] == [0, 1, 3, 2] else None


class IntegerProducts:
    """Products with integers in one graph.

    bytes_of: a weight's bytes by name, if they are in a file.
    """

    def __init__(self, bytes_of: Callable[[str], NDArray[np.uint8]]) -> None:
        self._bytes_of = bytes_of

    def extension(self) -> ConversionExtension:
        """Return what OpenVINO's reader needs."""
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
        # OpenVINO knows that these operators undo rounding: it multiplies integers.
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
        if has_gaps := bool(blocks * each * bits % 8):  # a row ends within a byte
            raw = _join(raw.reshape(rows, -1), blocks * each)
        tensor = ov.Tensor(raw, ov.Shape([rows, blocks, each]), _TYPES[bits])
        return ov.op.Constant(tensor, shared_memory=in_file and not has_gaps).output(0)


def _join(raw: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Rows of `count` integers of 4 bits, the lower half of a byte first, without gaps."""
    halves = np.stack([raw & 15, raw >> 4], -1).reshape(len(raw), -1)[:, :count].reshape(-1)
    halves = np.append(halves, np.zeros(len(halves) % 2, np.uint8))
    joined: NDArray[np.uint8] = halves[::2] | halves[1::2] << 4
    return joined
