"""Helpers of tensors that are dequantized row by row."""

from collections.abc import Iterator
from math import lcm

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.tensor_file import hole
from snapexport.files.copying import is_hole
from snapexport.files.safetensors import TensorSpan

_MOST = 1 << 22
"""Elements dequantized at a time: that takes several times their memory."""

Step = tuple[int, int, bool]


def rows_of(multiple: int, columns: int, most: int) -> int:
    """Rows to read at a time, so that their elements are a multiple of `multiple`."""
    least = lcm(multiple, columns) // columns
    return max(1, min(most, _MOST) // (least * columns)) * least


def steps(span: TensorSpan, rows: int, step: int) -> Iterator[Step]:
    """(start, end) of some of a tensor's rows, and whether a hole in the file makes them zeros."""
    row = span.nbytes // rows
    with span.file.open("rb") as file:
        for start in range(0, rows, step):
            end = min(start + step, rows)
            first, last = span.offset + start * row, span.offset + end * row
            yield start, end, is_hole(file.fileno(), first, last)


def zeros(size: int) -> NDArray[np.generic]:
    """Zeros that are written as a hole."""
    return hole(size, np.dtype(np.float32))


def mapped(span: TensorSpan) -> NDArray[np.uint8]:
    """The tensor's bytes, flat, mapped."""
    return np.memmap(span.file, np.uint8, "r", span.offset, shape=(span.nbytes,))
