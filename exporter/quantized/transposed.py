"""Weights whose integers are stored as [K,N], with scales and zeros [groups,N]: AWQ and GPTQ.

Some of the N columns are read at a time: they are rows of the weight.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.integers import Form, IntegerRows, IntegerWeight
from snapexport.exporter.integers.weight import Bits
from snapexport.exporter.quantized.groups import Groups
from snapexport.exporter.quantized.parts import array, as_scales
from snapexport.files.safetensors import TensorSpan

_MOST = 1 << 22
"""Elements read at a time: that takes several times their memory."""
STEP = 32
"""Rows that are read at a time are a multiple: zeros of 32 rows lie in whole words."""


@dataclass(frozen=True, eq=False)
class Transposed(IntegerWeight):
    """A matrix [rows,groups.columns] of integers of `bits` bits."""

    name: str
    count: int
    groups: Groups
    bits: int
    weights: TensorSpan
    zeros: TensorSpan
    scales: TensorSpan

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, self.groups.columns

    @property
    def form(self) -> Form:
        container: Bits = 4 if self.bits <= 4 else 8
        zero = None if self.shift is None else 1 << (container - 1)
        return Form(container, self.groups.block, zero, ordered=self.order is not None)

    @cached_property
    def shift(self) -> int | None:
        """What moves the one zero of all groups to the middle of the container.

        None if groups have several, or if integers would leave the container.
        """
        container = 4 if self.bits <= 4 else 8
        middle = 1 << (container - 1)
        found = {int(one) for part in self._parts(_MOST) for one in np.unique(self._zeros(*part))}
        if len(found) != 1:
            return None
        shift = middle - found.pop()
        return shift if 0 <= shift <= (1 << container) - (1 << self.bits) else None

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order, about `most` elements at a time. Raises UserError for bad values."""
        order, shift, scales = self.order, self.shift, array(self.scales)
        for start, end in self._parts(most):
            q = self._integers(start, end)
            if order is not None:
                q = q[:, order]
            zeros = None
            if shift is None:
                zeros = self.groups.spread(np.ascontiguousarray(self._zeros(start, end)))
            elif shift:
                q = q + np.uint8(shift)
            some = as_scales(self.name, scales[:, start:end].T)
            yield IntegerRows(q, self.groups.spread(some), zeros)

    def _parts(self, most: int) -> Iterator[tuple[int, int]]:
        step = max(1, min(most, _MOST) // self.groups.columns // STEP) * STEP
        for start in range(0, self.count, step):
            yield start, min(start + step, self.count)

    @abstractmethod
    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        """Some rows [n,K], in the order of the file's columns."""

    @abstractmethod
    def _zeros(self, start: int, end: int) -> NDArray[np.uint8]:
        """Their zeros [n,groups]."""
