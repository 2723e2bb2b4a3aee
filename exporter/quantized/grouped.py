"""A weight of integers in groups of columns, whatever its layout in the file.

A layout says how to read some rows of its integers, scales and zeros. Rows are read a few at a
time, and values are checked as they are read.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.integers import Form, IntegerRows, IntegerWeight
from snapexport.exporter.integers.weight import Bits
from snapexport.exporter.quantized.groups import Floats, Groups
from snapexport.exporter.quantized.parts import array, as_scales
from snapexport.exporter.quantized.quantization import AGAIN
from snapexport.files.safetensors import TensorSpan

_MOST = 1 << 22
"""Elements read at a time: that takes several times their memory."""
_STEP = 32
"""Rows that are read at a time are a multiple: zeros of 32 rows lie in whole words."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedWeight(IntegerWeight):
    """A matrix [count,groups.columns] of integers of `bits` bits.

    g_idx: the group of each column; None: groups in order.
    """

    name: str
    count: int
    groups: Groups
    bits: int
    g_idx: TensorSpan | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, self.groups.columns

    @property
    def container(self) -> Bits:
        """Bits of an integer in a graph."""
        return 4 if self.bits <= 4 else 8

    @property
    def form(self) -> Form:
        zero = None if self.shift is None else 1 << (self.container - 1)
        return Form(self.container, self.groups.block, zero, ordered=self.order is not None)

    @property
    def order(self) -> NDArray[np.int64] | None:
        """The weight's column for each column of q; None: as they lie."""
        return self._order

    @cached_property
    def zero(self) -> int | None:
        """The zero of all groups; None if there are several."""
        found = {int(one) for part in self._parts(_MOST) for one in np.unique(self._zeros(*part))}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def shift(self) -> int | None:
        """What moves the one zero to the middle of the container.

        None if groups have several, or if integers would leave the container.
        """
        if self.zero is None:
            return None
        shift = (1 << (self.container - 1)) - self.zero
        return shift if 0 <= shift <= (1 << self.container) - (1 << self.bits) else None

    @property
    def readable(self) -> "GroupedWeight | Floats":
        """The weight; dequantized where graphs can't read its blocks."""
        return self if self.groups.are_blocks else Floats(self)

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order, about `most` elements at a time. Raises UserError for bad values."""
        order, shift = self.order, self.shift
        for start, end in self._parts(most):
            q = self._integers(start, end)
            if order is not None:
                q = q[:, order]
            zeros = None
            if shift is None:
                zeros = self.groups.spread(np.ascontiguousarray(self._zeros(start, end)))
            elif shift:
                q = q + np.uint8(shift)
            scales = as_scales(self.name, self._scales(start, end))
            yield IntegerRows(q, self.groups.spread(scales), zeros)

    @cached_property
    def _order(self) -> NDArray[np.int64] | None:
        if self.g_idx is None:
            return None
        of_columns = np.asarray(array(self.g_idx)).astype(np.int64)
        order = np.argsort(of_columns, kind="stable")
        in_order = np.arange(len(of_columns)) // self.groups.size
        if not np.array_equal(of_columns[order], in_order):
            raise UserError(
                f"g_idx of the tensor {self.name} does not give each of its {self.groups.count} "
                f"groups {self.groups.size} columns",
                AGAIN,
            )
        return None if np.array_equal(of_columns, in_order) else order

    def _parts(self, most: int) -> Iterator[tuple[int, int]]:
        step = max(1, min(most, _MOST) // self.groups.columns // _STEP) * _STEP
        for start in range(0, self.count, step):
            yield start, min(start + step, self.count)

    @abstractmethod
    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        """Some rows [n,K], in the order of the file's columns."""

    @abstractmethod
    def _zeros(self, start: int, end: int) -> NDArray[np.uint8]:
        """Their zeros [n,groups]."""

    @abstractmethod
    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        """Their scales [n,groups]."""
