"""Tensors that are made of others while they are read: stacked, turned, picked or cut.

No whole tensor is in memory, unless a class says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.weights.tensor_file import (
    BLOCK,
    NUMPY_DTYPE,
    Calculated,
    Rearranged,
    Tensor,
    blocks,
    hole,
    in_blocks,
    is_hole,
)
from snapexport.files.safetensors import TensorSpan


@dataclass(frozen=True)
class _OfParts(Calculated):
    """Made of several tensors: of one after another, if a kind doesn't say otherwise."""

    parts: tuple[Tensor, ...]

    @property
    def dtype(self) -> str:
        """The parts' dtype, or fp32, which holds what any of several dtypes holds."""
        dtypes = {part.dtype for part in self.parts}
        return dtypes.pop() if len(dtypes) == 1 else "F32"

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat; each part in blocks of its own where they may be."""
        dtype, sizes = NUMPY_DTYPE[self.dtype], [prod(part.shape) for part in self.parts]
        if all(size % multiple == 0 for size in sizes):
            for part in self.parts:
                for block in blocks(part, multiple, most):
                    yield block.astype(dtype, copy=False)
        else:
            read = [block for part in self.parts for block in blocks(part)]
            yield np.concatenate(read).astype(dtype, copy=False)


class Stack(_OfParts):
    """Tensors of one shape, one after another: [n, *shape]."""

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.parts), *self.parts[0].shape


class Rows(_OfParts):
    """The rows of a matrix, then those of others of the same width: [n+m,K]."""

    @property
    def shape(self) -> tuple[int, ...]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


class InTurn(_OfParts):
    """The rows of two matrices [n,K] in turn: [2n,K], row 2i of the first, 2i + 1 of the second."""

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self.parts[0].shape
        return 2 * rows, columns

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        columns = self.shape[1]
        assert columns % multiple == 0, (columns, multiple)
        both = (blocks(part, columns, most // 2) for part in self.parts)
        for pair in zip(*both, strict=True):
            if all(map(is_hole, pair)):
                yield hole(2 * pair[0].size, NUMPY_DTYPE[self.dtype])
            else:
                rows = [block.reshape(-1, columns) for block in pair]
                yield np.stack(rows, axis=1).reshape(-1).astype(NUMPY_DTYPE[self.dtype], copy=False)


@dataclass(frozen=True)
class RowsInTurn(Rearranged):
    """A stack [E,2n,K], with the first and the second half of each matrix's rows in turn."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole matrices."""
        _, rows, columns = self.shape
        return self._arrange(
            lcm(rows * columns, multiple),
            1,
            lambda block: block.reshape(-1, 2, rows // 2, columns).swapaxes(1, 2),
        )


@dataclass(frozen=True)
class Swapped(Rearranged):
    """A stored tensor [N,K] or [E,N,K] as [K,N] or [E,K,N]. One matrix at a time is in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        *count, rows, columns = self.stored.shape
        return *count, columns, rows

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of as few whole matrices as possible."""
        *_, rows, columns = self.stored.shape
        return self._arrange(
            lcm(rows * columns, multiple),
            1,
            lambda block: block.reshape(-1, rows, columns).swapaxes(1, 2),
        )


def swap_axes(tensor: Tensor) -> Tensor:
    """The tensor with its last two axes swapped. Swapping again gives the stored tensor."""
    return tensor.stored if isinstance(tensor, Swapped) else Swapped(tensor)


@dataclass(frozen=True)
class Picked(Rearranged):
    """Rows of a tensor [n, ...], by their indices, which ascend: [len(rows), ...]."""

    rows: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.stored.shape[1:]

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat. All of them are in memory at a time."""
        return in_blocks(np.concatenate(list(self._rows())), multiple, most)

    def _rows(self) -> Iterator[NDArray[np.generic]]:
        """The rows, flat, a block of the stored ones at a time."""
        width, rows = prod(self.stored.shape[1:]), np.array(self.rows)
        if isinstance(self.stored, TensorSpan):
            shape, dtype = (*self.stored.shape[:1], width), NUMPY_DTYPE[self.dtype]
            mapped = np.memmap(self.stored.file, dtype, "r", self.stored.offset, shape=shape)
            yield mapped[rows].reshape(-1)
            return
        first = 0
        for block in blocks(self.stored, width):
            found = block.reshape(-1, width)
            inside = rows[(rows >= first) & (rows < first + len(found))]
            yield found[inside - first].reshape(-1)
            first += len(found)


@dataclass(frozen=True)
class RowsOfHeads(Rearranged):
    """Some rows of every head of a stored matrix [H*n,K]: a tensor [H,count,K].

    transposed: [H,K,count] instead.
    """

    stored: Tensor
    heads: int
    first: int
    count: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        columns = self.stored.shape[1]
        one = (columns, self.count) if self.transposed else (self.count, columns)
        return self.heads, *one

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat; a block holds whole heads."""
        rows, columns = self.stored.shape[0] // self.heads, self.stored.shape[1]
        for block in blocks(self.stored, rows * columns, most):
            parts = block.reshape(-1, rows, columns)[:, self.first : self.first + self.count]
            yield (parts.swapaxes(1, 2) if self.transposed else parts).reshape(-1)
