"""Weights of integers as DequantizeLinear reads them: around zero, in whole blocks.

TensorRT takes no zero points. A block's own zero point z becomes a minimum, (middle - z) * scale,
which a product of the sums of blocks adds. The rows of experts are read without such products.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.integers.joined import IntegerStack
from snapexport.exporter.integers.parts import Weight
from snapexport.exporter.integers.weight import SMALLEST_BLOCK, Form, IntegerRows, IntegerWeight


@dataclass(frozen=True)
class Signed(IntegerWeight):
    """A weight with minima in the place of zero points."""

    weight: IntegerWeight

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def form(self) -> Form:
        return signed_form(self.weight.form)

    @property
    def order(self) -> NDArray[np.int64] | None:
        return self.weight.order

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order."""
        form = self.weight.form
        for some in self.weight.rows(most):
            if not self.form.minima:
                yield some
                continue
            zeros = np.float32(form.zero or 0) if some.zeros is None else some.zeros
            moved = some.scales * (np.float32(form.middle) - zeros)
            minima = moved if some.minima is None else some.minima + moved
            yield IntegerRows(some.q, some.scales, None, minima)


def signed_form(form: Form) -> Form:
    """The form of integers of a checkpoint around zero."""
    minima = form.minima or form.zero is None
    return replace(form, zero=form.middle, minima=minima, signed=True)


def symmetric(form: Form, columns: int) -> Form | None:
    """The form to which floats are rounded, in blocks that divide a row; None: there are none."""
    block = gcd(form.block, columns)
    fits = block >= SMALLEST_BLOCK
    return replace(form, block=block, zero=form.middle, signed=True) if fits else None


def refusal(form: Form, shape: tuple[int, ...]) -> str | None:
    """Why a weight can't be read so; None: it can."""
    if shape[-1] % form.block:
        return "rows that end within a block"
    if len(shape) > 2 and (form.minima or form.ordered or form.zero is None):
        return "experts with zero points, minima or an order of columns"
    return None


def signed(weight: Weight | None) -> Weight | None:
    """The weight around zero, if it can be read so."""
    if weight is None or refusal(weight.form, weight.shape):
        return None
    if isinstance(weight, IntegerStack):
        return IntegerStack(tuple(Signed(part) for part in weight.parts))
    return Signed(weight) if isinstance(weight, IntegerWeight) else weight
