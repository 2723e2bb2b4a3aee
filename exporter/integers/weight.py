"""A weight [N,K] of small integers: w = (q - zero) * scale + minimum, a scale for each block."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from snapexport.exporter.tensor_file import Calculated
from snapexport.files.safetensors import TensorSpan

Bits = Literal[4, 8]
SMALLEST_BLOCK = 16
"""MatMulNBits takes blocks of 16, 32, 64, 128 and 256."""
LARGEST_BLOCK = 256
LARGEST_SCALE = float(np.finfo(np.float32).max) / 512
"""Below it, no product with an integer of 8 bits overflows."""


@dataclass(frozen=True)
class Form:
    """How a weight's integers are stored.

    bits: of an integer's container, 4 or 8. block: columns that share a scale, a power of 2. The
    last block of a row may be cut off. zero: of every block, `middle` unless there are minima,
    where it moves integers around the middle; None: each block has its own. minima: whether each
    block has one. ordered: columns are in an order of their own. signed: less the middle, and in
    whole blocks (signed.py). floats: e2m1 in the place of integers, with fp8 scales (Fp4).
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

    def dequantized(self, form: Form) -> NDArray[np.float32]:
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
        """The weight's column for each column of q; None: as they lie (`form.ordered`)."""
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
            yield from self._dequantized(most)
            return
        whole = np.concatenate(list(self._dequantized(most)))
        assert whole.size % multiple == 0, (self.shape, multiple)
        yield whole

    def _dequantized(self, most: int) -> Iterator[NDArray[np.float32]]:
        order = self.order
        for some in self.rows(most):
            values = some.dequantized(self.form)
            if order is not None:
                values[:, order] = values.copy()
            yield values.reshape(-1)
