"""Tensors that an adapter changes: replaced, or with a product of two small matrices added.

They are calculated in fp32 while they are read. Only the small matrices are in memory as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.tensor_file import BLOCK, NUMPY_DTYPE, Rearranged, Tensor, blocks
from snapexport.files.safetensors import TensorSpan

_Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Adapted(Rearranged):
    """A tensor of the adapter in the place of the checkpoint's."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat."""
        return blocks(self.stored, multiple, most)


@dataclass(frozen=True)
class LowRank:
    """The two small matrices of a weight, or of each of a stack's, and by what they count.

    a: [experts*r,K]. b: [N,r*experts], an expert's columns apart; None: b is one number for each
    element of a bias [N], which is `bias`. turned: the weight is [K,N] and not [N,K]. magnitude:
    the norm that each of the N outputs has (DoRA), or None. first, count: the rows that a rank has;
    0: all.
    """

    name: str
    a: TensorSpan | None
    b: TensorSpan
    scaling: float
    experts: int = 1
    turned: bool = False
    magnitude: TensorSpan | None = None
    first: int = 0
    count: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight that it fits."""
        rows = self.b.shape[0]
        columns = self.a.shape[1:] if self.a else ()
        sizes = (*columns, rows) if self.turned else (rows, *columns)
        return (self.experts, *sizes) if self.experts > 1 else sizes

    def read(self) -> tuple[_Floats, _Floats]:
        """The matrices [experts,rows,r] and [experts,r,columns] whose product is added."""
        b = _read(self.name, self.b)
        if self.a is None:
            left, right = b.reshape(1, -1, 1), np.ones((1, 1, 1), np.float32)
        else:
            right = _read(self.name, self.a).reshape(self.experts, -1, self.a.shape[1])
            left = b.reshape(len(b), -1, self.experts).transpose(2, 0, 1)
        if self.turned:
            left, right = right.swapaxes(1, 2), left.swapaxes(1, 2)
        return left[:, self._own], right

    def read_magnitude(self) -> _Floats | None:
        """The norms of the outputs, [N]."""
        if self.magnitude is None:
            return None
        return _read(self.name, self.magnitude)[slice(None) if self.turned else self._own]

    @property
    def _own(self) -> slice:
        return slice(self.first, self.first + self.count if self.count else None)


@dataclass(frozen=True)
class Merged(Adapted):
    """A weight [N,K] plus scaling * B A, or each of a stack's; of DoRA with norms of its own."""

    low_rank: LowRank

    @property
    def dtype(self) -> str:
        return "F32"

    def with_rows(self, first: int, stored: Tensor) -> "Merged":
        """Some rows of a matrix or a bias, from the `first` on. stored: the same rows."""
        rows = replace(self.low_rank, first=first, count=stored.shape[0])
        return Merged(stored, rows)

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        magnitude, turned = self.low_rank.read_magnitude(), self.low_rank.turned
        of_columns: _Floats | None = None
        if magnitude is not None and turned:
            squares = sum(np.square(some, dtype=np.float64).sum(0) for some in self._rows(1, most))
            of_columns = (magnitude / np.sqrt(squares)).astype(np.float32)
        first = 0
        for values in self._rows(multiple, most):
            if of_columns is not None:
                values *= of_columns
            elif magnitude is not None:
                wanted = magnitude[first : first + len(values)]
                values *= (wanted / np.linalg.norm(values, axis=1))[:, None]
            first += len(values)
            yield values.reshape(-1)

    def _rows(self, multiple: int, most: int) -> Iterator[_Floats]:
        """The sums in order, [n,columns]. They are cut as the stored tensor is."""
        left, right = self.low_rank.read()
        (_, rows, _), (*_, columns) = left.shape, right.shape
        first, scaling = 0, np.float32(self.low_rank.scaling)
        for block in blocks(self.stored, lcm(multiple, columns), most):
            values = block.astype(np.float32).reshape(-1, columns)
            end = first + len(values)
            for expert in range(first // rows, -(-end // rows)):
                start, stop = max(first, expert * rows), min(end, (expert + 1) * rows)
                some = left[expert, start - expert * rows : stop - expert * rows]
                values[start - first : stop - first] += (some @ right[expert]) * scaling
            first = end
            yield values


def _read(name: str, span: TensorSpan) -> _Floats:
    """A small tensor in fp32. Raises UserError for values that are not finite."""
    dtype = NUMPY_DTYPE[span.dtype]
    stored = np.memmap(span.file, dtype, "r", span.offset, shape=span.shape)
    values: _Floats = np.asarray(stored).astype(np.float32)
    if np.isfinite(values).all():
        return values
    raise UserError(
        f"the adapter's tensors of {name} have values that are NaN or infinite",
        "train it again, or take another of its checkpoints",
    )
