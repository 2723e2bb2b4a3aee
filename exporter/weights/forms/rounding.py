"""Rounds a weight of floats to integers while it is read, with little change of what a layer makes.

Scale and zero point of a block are searched for. Where it is known what the layer reads, columns
count by how large their inputs are, and the error of each column moves on to the following columns
of its block, whose inputs go along with its own: the step of GPTQ (arXiv:2210.17323), block by
block. Without that, the squared error of the weights is what counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.forms.integers import Form, IntegerRows, IntegerWeight
from snapexport.exporter.weights.tensor_file import BLOCK, Tensor, blocks

Floats = NDArray[np.float32]
_SPANS = (1.0, 0.92, 0.84, 0.76)
"""Shares of a block's range that the integers may span: what is outside is cut off."""
_DAMPING = 0.03
"""Added to the mean squares of all inputs, as a share of their mean: samples are few."""
_AT_ONCE = 1 << 18
"""Elements that are rounded at a time: what fits into a processor's cache."""
_STEP = 8
"""Columns whose errors reach the following columns in one product."""
_LARGEST = np.float32(np.finfo(np.float32).max * (1 - 1e-6))
"""No value may overflow when it is read."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a layer, for each block of its weight's columns.

    products: fp32 [blocks,block,block], sums of x_i x_j over samples; zero for padding.
    """

    products: Floats


def fit(rows: Floats, form: Form, inputs: Inputs | None = None) -> IntegerRows:
    """Round rows [n,blocks,block] to integers. inputs: of blocks as wide."""
    known = inputs is not None and inputs.products.shape[:2] == rows.shape[1:]
    prepared = _Prepared.of(inputs) if inputs and known else None
    step = max(1, _AT_ONCE // max(1, rows[0].size)) if len(rows) else 1
    parts = [_fit_some(rows[at : at + step], form, prepared) for at in range(0, len(rows), step)]
    q, scales, zeros = (np.concatenate(some) for some in zip(*parts, strict=True))
    return IntegerRows(q, scales, zeros if form.zero is None else None)


@dataclass(frozen=True)
class _Prepared:
    """weights: of the columns' squared errors [blocks,block]. moves: how much of the error of a
    column (row of the matrix) moves on to each other one [blocks,block,block].
    """

    weights: Floats
    moves: Floats

    @classmethod
    def of(cls, inputs: Inputs) -> "_Prepared":
        products = inputs.products.astype(np.float64)
        squares = np.einsum("cii->ci", products)
        mean = squares[squares > 0].mean() if (squares > 0).any() else 1.0
        damped = squares + _DAMPING * np.maximum(squares.mean(-1, keepdims=True), mean * 1e-6)
        np.einsum("cii->ci", products)[...] = damped
        inverse = np.linalg.inv(products)
        upper = np.linalg.cholesky((inverse + inverse.mT) / 2).mT
        moves = upper / np.einsum("cii->ci", upper)[..., None]
        return cls((damped / damped.mean()).astype(np.float32), moves.astype(np.float32))


def _fit_some(
    rows: Floats, form: Form, inputs: _Prepared | None
) -> tuple[NDArray[np.uint8], Floats, NDArray[np.uint8]]:
    sizes = np.abs(rows).max(-1, keepdims=True)
    x = rows / _above_zero(sizes)
    scales, zeros = _search(x, form, None if inputs is None else inputs.weights)
    top = np.float32(2 * form.middle - 1)
    if inputs is None:
        q = np.clip(np.rint(x / _above_zero(scales)) + zeros, 0, top)
    else:
        q = _move_errors(x, scales, zeros, top, inputs.moves)
    stored = np.minimum(scales * sizes, _LARGEST / np.maximum(zeros, top - zeros))[..., 0]
    return (
        q.astype(np.uint8).reshape(len(rows), -1),
        stored,
        zeros[..., 0].astype(np.uint8),
    )


def _search(x: Floats, form: Form, weights: Floats | None) -> tuple[Floats, Floats]:
    """The scale and the zero point [n,blocks,1] of least error for blocks between -1 and 1.

    Each candidate's scale is the best one for its integers. Errors are sums of squared differences:
    a difference of large sums, (x q)^2 / q q among them, loses an error of 8 bits in fp32.
    """
    top = 2 * form.middle - 1
    least = np.full((*x.shape[:-1], 1), np.inf, np.float32)
    scales, zeros = np.zeros_like(least), np.full_like(least, form.middle)
    for scale, zero in _candidates(x, form):
        q = np.clip(np.rint(x / scale) + zero, 0, top) - zero
        weighted = q if weights is None else q * weights
        along = np.einsum("nbk,nbk->nb", weighted, x)[..., None]
        square = np.einsum("nbk,nbk->nb", weighted, q)[..., None]
        fitted = along / np.where(square > 0, square, 1)
        off = q * fitted - x
        weighted = off if weights is None else off * weights
        error = np.einsum("nbk,nbk->nb", weighted, off)[..., None]
        better = (error < least) & (along > 0)
        least = np.where(better, error, least)
        scales = np.where(better, fitted, scales)
        zeros = np.where(better, zero, zeros)
    return scales, zeros


def _candidates(x: Floats, form: Form) -> Iterator[tuple[Floats, Floats]]:
    """Scales and zero points. The first is plain rounding's, around the middle."""
    middle = form.middle
    if form.zero is not None:
        size = np.abs(x).max(-1, keepdims=True)
        for span in (middle / (middle - 1), *_SPANS):
            yield _above_zero(size * np.float32(span / middle)), np.full_like(size, middle)
        return
    low, high = (one(x, -1, keepdims=True) for one in (np.min, np.max))
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    up = high > -low
    yield (
        _above_zero(np.maximum(high, -low) / np.float32(middle)),
        np.where(up, middle - 1, middle).astype(np.float32),
    )
    top = 2 * middle - 1
    for span in _SPANS:
        scale = _above_zero((high - low) * np.float32(span / top))
        yield scale, np.clip(np.rint(top / 2 - (high + low) / (2 * scale)), 0, top)


def _move_errors(
    x: Floats, scales: Floats, zeros: Floats, top: np.float32, moves: Floats
) -> Floats:
    """The integers, column by column of all blocks: each column's error moves on to the next."""
    of_columns = np.ascontiguousarray(x.transpose(1, 2, 0))  # [blocks,block,n]
    scale, zero = (one.transpose(1, 2, 0)[:, 0] for one in (scales, zeros))
    inverse = 1 / _above_zero(scale)
    block = x.shape[-1]
    q = np.empty_like(of_columns)
    for first in range(0, block, _STEP):
        last = min(first + _STEP, block)
        errors = np.empty((len(moves), last - first, len(x)), np.float32)
        for column in range(first, last):
            value, error = of_columns[:, column], errors[:, column - first]
            np.clip(np.rint(value * inverse) + zero, 0, top, out=q[:, column])
            np.subtract(value, (q[:, column] - zero) * scale, out=error)
            near = moves[:, column, column + 1 : last, None]
            of_columns[:, column + 1 : last] -= near * error[:, None]
        of_columns[:, last:] -= moves[:, first:last, last:].mT @ errors
    return q.transpose(2, 0, 1)


def _above_zero(scales: Floats) -> Floats:
    """The scales, and 1 in the place of zeros."""
    return np.where(scales > 0, scales, np.float32(1))


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
            found = fit(padded.reshape(len(rows), -1, block), self.form, self.inputs)
            yield IntegerRows(found.q[:, :columns], found.scales, found.zeros, found.minima)
