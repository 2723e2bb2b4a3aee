"""Makes constants of OpenVINO's, and reads sizes of its values."""

from typing import Any

import numpy as np
import openvino.opset14 as op

Value = Any
"""An output of a node of OpenVINO's."""


def ints(*values: int) -> Value:
    """Int64 [n]."""
    return op.constant(np.array(values, np.int64)).output(0)


def numbers_to(count: int) -> Value:
    """Int64 [n]: 0, 1, ..."""
    return op.constant(np.arange(count, dtype=np.int64)).output(0)


def scalar(value: float, like: Value) -> Value:
    """A scalar of another value's type."""
    return op.constant(value, like.get_element_type()).output(0)


def size(value: Value, axis: int) -> int:
    """A dimension that is known."""
    return int(value.get_partial_shape()[axis].get_length())


def optional(node: Any, at: int) -> Value | None:
    """An input that may be absent."""
    if at >= node.get_input_size():
        return None
    value = node.get_input(at)
    return None if value.get_node().get_type_name() == "NullNode" else value
