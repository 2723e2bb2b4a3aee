"""Tensors that are made of several others while they are read. No whole tensor is in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.tensor_file import (
    BLOCK,
    NUMPY_DTYPE,
    Calculated,
    Tensor,
    blocks,
    hole,
    is_hole,
)


@dataclass(frozen=True)
class Stack(Calculated):
    """Tensors of one shape, one after another: [n, *shape]."""

    parts: tuple[Tensor, ...]

    @property
    def dtype(self) -> str:
        return _common(self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.parts), *self.parts[0].shape

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat."""
        dtype = NUMPY_DTYPE[self.dtype]
        for part in self.parts:
            for block in blocks(part, multiple, most):
                yield block.astype(dtype, copy=False)


@dataclass(frozen=True)
class InTurn(Calculated):
    """The rows of two matrices [n,K] in turn: [2n,K], row 2i of the first, 2i + 1 of the second."""

    first: Tensor
    second: Tensor

    @property
    def dtype(self) -> str:
        return _common((self.first, self.second))

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self.first.shape
        return 2 * rows, columns

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        columns = self.shape[1]
        assert columns % multiple == 0, (columns, multiple)
        both = (blocks(one, columns, most // 2) for one in (self.first, self.second))
        for pair in zip(*both, strict=True):
            if all(map(is_hole, pair)):
                yield hole(2 * pair[0].size, NUMPY_DTYPE[self.dtype])
            else:
                rows = [block.reshape(-1, columns) for block in pair]
                yield np.stack(rows, axis=1).reshape(-1).astype(NUMPY_DTYPE[self.dtype], copy=False)


@dataclass(frozen=True)
class Rows(Calculated):
    """The rows of a matrix, then those of another of the same width: [n+m,K]."""

    first: Tensor
    second: Tensor

    @property
    def dtype(self) -> str:
        return _common((self.first, self.second))

    @property
    def shape(self) -> tuple[int, ...]:
        (first, columns), (second, _) = self.first.shape, self.second.shape
        return first + second, columns

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat; each matrix in blocks of its own where they may be."""
        dtype, sizes = NUMPY_DTYPE[self.dtype], [prod(one.shape) for one in self._both]
        if all(size % multiple == 0 for size in sizes):
            for one in self._both:
                for block in blocks(one, multiple, most):
                    yield block.astype(dtype, copy=False)
        else:
            read = [block for one in self._both for block in blocks(one)]
            yield np.concatenate(read).astype(dtype, copy=False)

    @property
    def _both(self) -> tuple[Tensor, Tensor]:
        return self.first, self.second


@dataclass(frozen=True)
class RowsInTurn(Calculated):
    """A stack [E,2n,K], with the first and the second half of each matrix's rows in turn."""

    stored: Tensor

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole matrices."""
        _, rows, columns = self.shape
        for block in blocks(self.stored, lcm(rows * columns, multiple), 1):
            if is_hole(block):
                yield hole(block.size, NUMPY_DTYPE[self.dtype])
            else:
                halves = block.reshape(-1, 2, rows // 2, columns)
                yield halves.swapaxes(1, 2).reshape(-1)


def _common(parts: tuple[Tensor, ...]) -> str:
    """The parts' dtype, or fp32, which holds what any of several dtypes holds."""
    dtypes = {part.dtype for part in parts}
    return dtypes.pop() if len(dtypes) == 1 else "F32"
