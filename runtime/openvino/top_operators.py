"""Converts TopK, and what votes have in its place (top_sets.py)."""

from typing import Any

import numpy as np
import openvino.opset14 as op
from openvino.frontend.onnx import ConversionExtension

from snapexport.contract.names import DOMAIN
from snapexport.runtime.openvino.top_sets import TOP_SET, TOP_VALUES
from snapexport.runtime.openvino.values import Value, ints


def _top_k(node: Any) -> list[Value]:
    """Of equal values the one with the lower index comes first, as ONNX has it."""
    return _top(node, stable=True)


def _top_values(node: Any) -> list[Value]:
    return _top(node, stable=False)


def _top(node: Any, *, stable: bool) -> list[Value]:
    mode = "max" if node.get_attribute("largest", 1) else "min"
    axis, count = node.get_attribute("axis", -1), _count(node)
    values = node.get_input(0)
    top = op.topk(values, count, axis, mode, "value", index_element_type="i64", stable=stable)
    return list(top.outputs())


def _top_set(node: Any) -> list[Value]:
    """Of the values that equal the lowest one kept, the first are kept: along the last axis."""
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


TOP_EXTENSIONS = (
    ConversionExtension("TopK", "", _top_k),
    ConversionExtension(TOP_SET, DOMAIN, _top_set),
    ConversionExtension(TOP_VALUES, DOMAIN, _top_values),
)
"""What OpenVINO's reader is given."""
