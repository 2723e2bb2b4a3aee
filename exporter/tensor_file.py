"""Tensors as they lie in .safetensors files: read block by block, written behind a header.

Nothing here holds a whole tensor.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from math import prod

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from snapexport.contract.targets import DType
from snapexport.exporter.checkpoint import TensorSpan

SAFETENSORS_DTYPE: dict[DType, str] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
NUMPY_DTYPE = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U8": np.dtype(np.uint8),
}
BLOCK = 1 << 24
"""Elements that are read at a time."""

_HEADER_ALIGNMENT = 64


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The head of a file that holds tensors of these (dtype, shape), in this order."""
    entries: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + prod(shape) * NUMPY_DTYPE[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def blocks(span: TensorSpan, multiple: int = 1) -> Iterator[NDArray[np.generic]]:
    """The tensor's elements in order, flat, as many at a time as `multiple` divides."""
    dtype = NUMPY_DTYPE[span.dtype]
    data = np.memmap(span.file, dtype, "r", span.offset, shape=(span.nbytes // dtype.itemsize,))
    step = max(1, BLOCK // multiple) * multiple
    for start in range(0, data.size, step):
        yield data[start : start + step]
