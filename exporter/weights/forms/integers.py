"""A weight [N,K] of small integers: w = (q - zero) * scale + minimum, a scale for each block.

Others may be joined to it: rows in turn, rows one after another, stacks of experts.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.weights.arranged import InTurn, Rows, Stack
from snapexport.exporter.weights.tensor_file import Calculated, Tensor
from snapexport.files.safetensors import TensorSpan

Bits = Literal[4, 8]
SMALLEST_BLOCK = 16
"""MatMulNBits takes blocks of 16, 32, 64, 128 and 256."""
LARGEST_BLOCK = 256
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The values of floats of 4 bits (OCP Microscaling Formats v1.0)."""
LARGEST_SCALE = float(np.finfo(np.float32).max) / 512
"""Below it, no product with an integer of 8 bits overflows."""


@dataclass(frozen=True)
class Form:
    """How a weight's integers are stored.

    bits: of an integer's container, 4 or 8. block: columns that share a scale, a power of 2. The
    last block of a row may be cut off. zero: of every block, `middle` unless there are minima,
    where it moves integers around the middle; None: each block has its own. minima: whether each
    block has one. ordered: columns are in an order of their own. signed: less the middle, and in
    whole blocks (`choice.Signed`). floats: e2m1 in the place of integers, with fp8 scales (Fp4).
    """

    bits: Bits
    block: int
    zero: int | None
    minima: bool = False
    ordered: bool = False
    signed: bool = False
    floats: bool = False

    def __post_init__(self) -> None:
        assert self.minima or self.zero in (None, self.middle), self
        assert not (self.minima and self.zero is None), self
        assert not self.signed or self.zero == self.middle, self

    @property
    def middle(self) -> int:
        """The zero of MatMulNBits without zero points."""
        return 1 << self.bits - 1

    def count(self, columns: int) -> int:
        """Blocks of a row."""
        return -(-columns // self.block)


@dataclass(frozen=True)
class IntegerRows:
    """Some rows of a weight.

    q: uint8 [n,K], below 2^bits. scales: fp32 [n,K/block]. zeros: uint8 [n,K/block], or None where
    the form has one for all. minima: fp32 [n,K/block], or None.
    """

    q: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None = None
    minima: NDArray[np.float32] | None = None

    def dequantize(self, form: Form) -> NDArray[np.float32]:
        """fp32 [n,K]: (q - zero) * scale + minimum, with columns in the order of q."""
        columns = self.q.shape[1]

        def of_columns(one: NDArray[np.generic]) -> NDArray[np.float32]:
            return one.astype(np.float32).repeat(form.block, axis=1)[:, :columns]

        values = self.q.astype(np.float32)
        values -= np.float32(form.zero) if self.zeros is None else of_columns(self.zeros)
        values *= of_columns(self.scales)
        if self.minima is not None:
            values += of_columns(self.minima)
        return values


@dataclass(frozen=True)
class Fp4:
    """A matrix [N,K] as NVFP4 stores it: w = value * scale * factor.

    values: uint8 [N,K/2], e2m1, the first of two in the low half. scales: fp8 [N,K/16].
    """

    values: TensorSpan
    scales: TensorSpan
    factor: np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        rows, half = self.values.shape
        return rows, 2 * half

    @property
    def form(self) -> Form:
        return Form(4, SMALLEST_BLOCK, 8, signed=True, floats=True)


class IntegerWeight(Calculated):
    """A weight that is read as integers, or dequantized."""

    @property
    @abstractmethod
    def form(self) -> Form: ...

    @property
    def floats(self) -> Fp4 | None:
        """The floats of 4 bits as which it is stored; None: it is stored as integers."""
        return None

    @property
    def order(self) -> NDArray[np.int64] | None:
        """The weight's column for each column of q; None: in order (`form.ordered`)."""
        return None

    @abstractmethod
    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order, about `most` elements at a time. Raises UserError for bad values."""

    @property
    def dtype(self) -> str:
        return "F32"

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The dequantized elements in order, flat, in blocks of whole rows."""
        if self.shape[1] % multiple == 0:
            yield from self._dequantize(most)
            return
        whole = np.concatenate(list(self._dequantize(most)))
        assert whole.size % multiple == 0, (self.shape, multiple)
        yield whole

    def _dequantize(self, most: int) -> Iterator[NDArray[np.float32]]:
        order = self.order
        for some in self.rows(most):
            values = some.dequantize(self.form)
            if order is not None:
                values[:, order] = values.copy()
            yield values.reshape(-1)


Join = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class JoinedIntegers(IntegerWeight):
    """The rows of two weights of one form: in turn, or one after another: [n+m,K]."""

    first: IntegerWeight
    second: IntegerWeight
    in_turn: bool

    @property
    def shape(self) -> tuple[int, ...]:
        (first, columns), (second, _) = self.first.shape, self.second.shape
        return first + second, columns

    @property
    def form(self) -> Form:
        return self.first.form

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order."""
        if not self.in_turn:
            yield from self.first.rows(most)
            yield from self.second.rows(most)
            return
        step = max(1, most // 2 // self.shape[1])
        both = (_in_steps(one.rows(most // 2), step) for one in (self.first, self.second))
        for pair in zip(*both, strict=True):
            yield _join(pair, _interleave)


@dataclass(frozen=True)
class IntegerStack:
    """Weights of one form and shape, one after another: [E,N,K]."""

    parts: tuple[IntegerWeight, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.parts), *self.parts[0].shape

    @property
    def form(self) -> Form:
        return self.parts[0].form

    @property
    def order(self) -> None:
        """Columns of stacks are in order."""
        return None

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """The rows of all weights in order."""
        for part in self.parts:
            yield from part.rows(most)


def as_integers(tensor: Tensor) -> IntegerWeight | IntegerStack | None:
    """A tensor as integers, if all of its parts are such, in one form with columns in order."""
    match tensor:
        case IntegerWeight():
            return tensor
        case InTurn() | Rows() if found := _of_one_form(tensor.parts):
            return JoinedIntegers(found[0], found[1], isinstance(tensor, InTurn))
        case Stack() if found := _of_one_form(tensor.parts):
            return IntegerStack(tuple(found))
    return None


def _of_one_form(tensors: Sequence[Tensor]) -> list[IntegerWeight]:
    """The tensors as integers; none if they don't fit together."""
    found = [one for each in tensors if isinstance(one := as_integers(each), IntegerWeight)]
    fits = len(found) == len(tensors) and len({one.form for one in found}) == 1
    return found if fits and not found[0].form.ordered else []


def _in_steps(rows: Iterator[IntegerRows], step: int) -> Iterator[IntegerRows]:
    """The rows, exactly `step` at a time but for the last."""
    rest: list[IntegerRows] = []
    for some in rows:
        rest.append(some)
        if sum(len(one.q) for one in rest) >= step:
            whole = _join(rest, np.concatenate)
            full = len(whole.q) // step * step
            for start in range(0, full, step):
                yield _cut(whole, slice(start, start + step))
            rest = [_cut(whole, slice(full, None))] if full < len(whole.q) else []
    if rest:
        yield _join(rest, np.concatenate)


def _interleave(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.stack(arrays, axis=1).reshape(-1, arrays[0].shape[1])


def _join(some: Sequence[IntegerRows], join: Join) -> IntegerRows:
    def of(values: list[Any]) -> NDArray[Any] | None:
        return None if values[0] is None else join(values)

    return IntegerRows(
        join([one.q for one in some]),
        join([one.scales for one in some]),
        of([one.zeros for one in some]),
        of([one.minima for one in some]),
    )


def _cut(rows: IntegerRows, part: slice) -> IntegerRows:
    zeros = None if rows.zeros is None else rows.zeros[part]
    minima = None if rows.minima is None else rows.minima[part]
    return IntegerRows(rows.q[part], rows.scales[part], zeros, minima)
