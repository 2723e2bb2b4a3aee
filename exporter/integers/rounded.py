"""Rounds a weight of floats to integers while it is read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snapexport.errors import UserError
from snapexport.exporter.integers.fitted import Inputs, fitted
from snapexport.exporter.integers.weight import Form, IntegerRows, IntegerWeight
from snapexport.exporter.tensor_file import BLOCK, Tensor, blocks


@dataclass(frozen=True)
class RoundedWeight(IntegerWeight):
    """A tensor [N,K] or [E,N,K] of floats in a form of integers. inputs: what its layer reads."""

    name: str
    stored: Tensor
    rounded_to: Form
    inputs: Inputs | None = None

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
            found = fitted(padded.reshape(len(rows), -1, block), self.form, self.inputs)
            yield IntegerRows(found.q[:, :columns], found.scales, found.zeros, found.minima)
