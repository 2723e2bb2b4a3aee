"""Reads a checkpoint's tensors block by block, and writes a file for each weight.

Never holds a whole tensor in memory.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import ml_dtypes  # noqa: F401 (teaches NumPy the names of small floats)
import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.files.copying import CLONE_BLOCK, copy_range
from snapexport.files.copying import is_hole as is_hole_of_file
from snapexport.files.dtypes import BY_FLAG, DTYPES, OF_GRAPHS
from snapexport.files.safetensors import SUFFIX, TensorSpan, header, read_header, tensor_bytes


class Calculated(ABC):
    """A tensor that is calculated while it is read, of tensors that are stored otherwise."""

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The name of the type in safetensors."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)

    @abstractmethod
    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks whose size is a multiple of `multiple`."""


Tensor = TensorSpan | Calculated
"""A tensor of a checkpoint: bytes in a file, or something to be calculated of them."""


@dataclass(frozen=True)
class Rearranged(Calculated):
    """Elements of a stored tensor, or all, in another order."""

    stored: Tensor

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    def _arrange(
        self,
        multiple: int,
        most: int,
        arrange: Callable[[NDArray[np.generic]], NDArray[np.generic]],
        ranks: int = 1,
    ) -> Iterator[NDArray[np.generic]]:
        """Arrange each block of the stored tensor; a hole stays one. ranks: how many share it."""
        for block in blocks(self.stored, multiple, most):
            if is_hole(block):
                yield hole(block.size // ranks, NUMPY_DTYPE[self.dtype])
            else:
                yield arrange(block).reshape(-1)


NUMPY_DTYPE = {one.safetensors: np.dtype(one.numpy) for one in OF_GRAPHS if one.safetensors}
"""The types that graphs can have, by safetensors' names."""
FLOATS = tuple(BY_FLAG[dtype].safetensors for dtype in DTYPES)
BLOCK = 1 << 24
"""Elements read at a time."""
_WORTH_CLONING = 1 << 16
"""Smallest tensor, in bytes, that is aligned so that a reflink can share its blocks."""
Progress = Callable[[int], None]
"""Called with the number of bytes just written."""


def blocks(tensor: Tensor, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
    """The tensor's elements in order, flat, in blocks whose size is a multiple of `multiple`.

    most: elements of a block, if `multiple` and the tensor's rows let it. A block that is a hole of
    its file is a `hole`.
    """
    if not isinstance(tensor, TensorSpan):
        yield from tensor.blocks(multiple, most)
        return
    dtype = NUMPY_DTYPE[tensor.dtype]
    shape = (tensor.nbytes // dtype.itemsize,)
    data = np.memmap(tensor.file, dtype, "r", tensor.offset, shape=shape)
    step = max(1, most // multiple) * multiple
    with tensor.file.open("rb") as file:
        for start in range(0, data.size, step):
            block = data[start : start + step]
            begin = tensor.offset + start * dtype.itemsize
            unwritten = is_hole_of_file(file.fileno(), begin, begin + block.nbytes)
            yield hole(block.size, dtype) if unwritten else block


@dataclass(frozen=True)
class Narrowed(Calculated):
    """Floats of 64 bits, read as fp32."""

    stored: TensorSpan
    dtype = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks whose size is a multiple of `multiple`."""
        count = (self.stored.nbytes // np.dtype(np.float64).itemsize,)
        flat = np.memmap(self.stored.file, np.float64, "r", self.stored.offset, shape=count)
        yield from (block.astype(np.float32) for block in in_blocks(flat, multiple, most))


def require_floats(name: str, tensor: Tensor) -> None:
    """Raise UserError for a tensor of a type that is not converted."""
    if tensor.dtype not in FLOATS:
        raise UserError(
            f"the tensor {name} is stored as {tensor.dtype}",
            f"only F64, {', '.join(FLOATS)} weights are read: start from the original checkpoint",
        )


def in_blocks(
    flat: NDArray[np.generic], multiple: int, most: int = BLOCK
) -> Iterator[NDArray[np.generic]]:
    """Elements in memory, in blocks as `blocks` cuts them."""
    step = max(1, most // multiple) * multiple
    yield from (flat[start : start + step] for start in range(0, flat.size, step))


def hole(size: int, dtype: "np.dtype[np.generic]") -> NDArray[np.generic]:
    """Zeros that take no memory, and no place on the disk if they are written."""
    return np.broadcast_to(np.zeros((), dtype), (size,))


def is_hole(block: NDArray[np.generic]) -> bool:
    """Whether a block was made by `hole`."""
    return block.strides == (0,)


def cast(name: str, values: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """Values of a tensor in another type. Raises UserError for those that it cannot hold."""
    with np.errstate(all="ignore"):
        made = values.astype(NUMPY_DTYPE[dtype])
    # Widening to fp32 cannot overflow, so the check is skipped.
    if dtype != "F32" and (np.isinf(made) & ~np.isinf(values)).any():
        raise UserError(
            f"the tensor {name} has values that {dtype} cannot hold", "use --dtype fp32"
        )
    return made


class WeightWriter:
    """Writes the file of one weight: a header and its bytes. Refuses an existing file.

    sha256: of the whole file, once closed; None if some bytes were shared by reflink or
    are a hole.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        progress: Progress,
        data_at: tuple[int, int] = (64, 0),
    ) -> None:
        assert "/" not in name, name
        self.name, self.file = name, directory / f"{name}{SUFFIX}"
        self.sha256: str | None = None
        self._progress, self._digest, self._hashes = progress, hashlib.sha256(), True
        self._header = header({name: (dtype, shape)}, data_at)

    def __enter__(self) -> Self:
        self._out = self.file.open("xb")
        self._digest.update(self._header)
        self._out.write(self._header)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._out.close()
        self.sha256 = self._digest.hexdigest() if self._hashes else None

    def write(self, data: bytes) -> None:
        """Write the next bytes of the tensor."""
        self._out.write(data)
        self._digest.update(data)
        self._progress(len(data))

    def skip(self, nbytes: int) -> None:
        """Leave a hole in the place of the next bytes of the tensor."""
        self._hashes = False
        self._out.seek(nbytes, os.SEEK_CUR)
        self._out.truncate()
        self._progress(nbytes)

    def copy(self, span: TensorSpan) -> None:
        """Copy all bytes of the tensor from another file."""
        self._out.flush()
        with span.file.open("rb") as source:
            self._hashes = copy_range(
                source.fileno(),
                span.offset,
                span.offset + span.nbytes,
                self._out.fileno(),
                self._out.tell(),
                self._progress,
                self._digest.update,
            )

    @property
    def span(self) -> TensorSpan:
        """The tensor's place in the file."""
        return read_header(self.file)[self.name]


def place_of(span: TensorSpan) -> tuple[int, int]:
    """`data_at` for a copy of `span`. It is the same on every file system, so graphs are too."""
    if span.nbytes < _WORTH_CLONING:
        return 64, 0
    return CLONE_BLOCK, span.offset % CLONE_BLOCK
