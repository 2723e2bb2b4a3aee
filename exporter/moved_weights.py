"""A matrix, or a stack of them, with its last two axes swapped, matrix by matrix."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.tensor_file import NUMPY_DTYPE, Rearranged, Tensor, blocks, hole, is_hole


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
        for block in blocks(self.stored, lcm(rows * columns, multiple), 1):
            if is_hole(block):
                yield hole(block.size, NUMPY_DTYPE[self.dtype])
            else:
                yield block.reshape(-1, rows, columns).swapaxes(1, 2).reshape(-1)


def swapped(tensor: Tensor) -> Tensor:
    """The tensor with its last two axes swapped. Swapping again gives the stored tensor."""
    return tensor.stored if isinstance(tensor, Swapped) else Swapped(tensor)
