"""Rounds a weight of floats to integers while it is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.integers.weight import Form, IntegerRows, IntegerWeight
from snapexport.exporter.tensor_file import BLOCK, Tensor, blocks

Rounding = Callable[[NDArray[np.float32], Form], IntegerRows]
"""Rounds rows [n,blocks,block], padded with zeros, to the integers [n,blocks * block] of a form."""


@dataclass(frozen=True)
class RoundedWeight(IntegerWeight):
    """A tensor [N,K] or [E,N,K] of floats in a form of integers."""

    name: str
    stored: Tensor
    rounded_to: Form
    rounding: Rounding

    @property
    def form(self) -> Form:
        return self.rounded_to

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def rows(self, most: int = BLOCK) -> Iterator[IntegerRows]:
        """All rows in order. Raises UserError for values that are not finite."""
        columns, block = self.shape[-1], self.form.block
        for some in blocks(self.stored, columns, most):
            rows = some.astype(np.float32).reshape(-1, columns)
            if not np.isfinite(rows).all():
                raise UserError(
                    f"the tensor {self.name} has NaN or infinite values",
                    "leave out --weights int4 or int8",
                )
            padded = np.pad(rows, ((0, 0), (0, -columns % block)))
            found = self.rounding(padded.reshape(len(rows), -1, block), self.form)
            yield IntegerRows(found.q[:, :columns], found.scales, found.zeros, found.minima)


def to_nearest(rows: NDArray[np.float32], form: Form) -> IntegerRows:
    """The value of largest magnitude of each block becomes the integer 0, which is the lowest.

    Around the middle, the integers reach one further down than up (as in llama.cpp's Q4_0).
    """
    low, high = rows.min(-1), rows.max(-1)
    scales = np.where(-low > high, low, high) / -form.middle
    steps = np.divide(rows, scales[..., None], where=scales[..., None] != 0, out=rows * 0)
    q = np.clip(np.rint(steps) + form.middle, 0, 2 * form.middle - 1).astype(np.uint8)
    return IntegerRows(q.reshape(len(rows), -1), scales)
