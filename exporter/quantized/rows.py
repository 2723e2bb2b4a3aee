"""Helpers of tensors that are dequantized row by row."""

from collections.abc import Iterator
from math import lcm

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.safetensors import TensorSpan

AGAIN = "download the checkpoint again: the file is damaged or incomplete"
_MOST = 1 << 22
"""Elements dequantized at a time: that takes several times their memory."""


def rows_of(multiple: int, columns: int, most: int) -> int:
    """Rows to read at a time, so that their elements are a multiple of `multiple`."""
    least = lcm(multiple, columns) // columns
    return max(1, min(most, _MOST) // (least * columns)) * least


def steps(rows: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each step."""
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def mapped(span: TensorSpan) -> NDArray[np.uint8]:
    """The tensor's bytes, flat, mapped."""
    return np.memmap(span.file, np.uint8, "r", span.offset, shape=(span.nbytes,))
