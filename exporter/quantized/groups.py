"""Groups of a row's columns that share a scale, as blocks whose size is a power of two."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.integers import IntegerWeight
from snapexport.exporter.integers.weight import LARGEST_BLOCK, SMALLEST_BLOCK
from snapexport.exporter.tensor_file import Calculated

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True)
class Groups:
    """columns: of a row. size: columns of a group, of which the last may have fewer."""

    columns: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.columns // self.size)

    @property
    def block(self) -> int:
        """The largest power of two that divides a group; a group's own size where that is small."""
        whole = min(self.size, self.columns)
        power = min(whole & -whole, LARGEST_BLOCK)
        if power >= SMALLEST_BLOCK:
            return power
        return SMALLEST_BLOCK if self.count == 1 else self.size

    @property
    def are_blocks(self) -> bool:
        """Whether graphs can read integers in such blocks."""
        return SMALLEST_BLOCK <= self.block <= LARGEST_BLOCK and self.block.bit_count() == 1

    def spread(self, values: NDArray[T]) -> NDArray[T]:
        """Of values for each group [n,count] those of each block."""
        blocks = -(-self.columns // self.block)
        if self.count == 1:
            return values.repeat(blocks, axis=1)
        return values.repeat(self.size // self.block, axis=1)[:, :blocks]


@dataclass(frozen=True, eq=False)
class Floats(Calculated):
    """A weight of integers in blocks that graphs can't read: it is always dequantized."""

    weight: IntegerWeight
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        return self.weight.blocks(multiple, most)
