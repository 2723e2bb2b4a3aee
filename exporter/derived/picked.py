"""Some rows of a tensor, in an order of their own. Only these are read where that is possible."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.tensor_file import BLOCK, NUMPY_DTYPE, Rearranged, blocks
from snapexport.files.safetensors import TensorSpan


@dataclass(frozen=True)
class Picked(Rearranged):
    """Rows of a tensor [n, ...], by their indices, which ascend: [len(rows), ...]."""

    rows: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.stored.shape[1:]

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat. All of them are in memory at a time."""
        flat = np.concatenate(list(self._rows()))
        step = max(1, most // multiple) * multiple
        yield from (flat[start : start + step] for start in range(0, flat.size, step))

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
