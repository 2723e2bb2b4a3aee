"""Weights of a GGUF file as integers: which types have them, and a weight of one that does."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.gguf import blocks, tables
from snapexport.exporter.gguf.blocks import Bytes, Parts
from snapexport.exporter.gguf.header import DOWNLOAD_AGAIN, StoredTensor
from snapexport.exporter.integers import LARGEST_SCALE, Form, IntegerRows, IntegerWeight

_MOST = 1 << 20
"""Elements read at a time: that takes several times their memory."""


@dataclass(frozen=True)
class Kind:
    """A type of tensors. parts: takes blocks of bytes apart."""

    form: Form
    parts: Callable[[Bytes], Parts]


_MIDDLE_4 = {block: Form(4, block, 8) for block in (16, 32, 128, 256)}
_MIDDLE_8 = {32: Form(8, 32, 128), 16: Form(8, 16, 128)}
_FROM_0 = {4: Form(4, 32, 0, minima=True), 5: Form(8, 32, 112, minima=True)}
"""By the bits of integers from 0 on, which are moved by the zero to the middle of their container:
sums of products would cancel otherwise, and the error of activations in 8 bits would not."""

KINDS: Mapping[str, Kind] = {
    "Q1_0": Kind(_MIDDLE_4[128], blocks.q1_0),
    "Q4_0": Kind(_MIDDLE_4[32], blocks.q4_0),
    "Q4_1": Kind(_FROM_0[4], blocks.q4_1),
    "Q5_0": Kind(_MIDDLE_8[32], blocks.q5_0),
    "Q5_1": Kind(_FROM_0[5], blocks.q5_1),
    "Q8_0": Kind(_MIDDLE_8[32], blocks.q8_0),
    "Q2_K": Kind(Form(4, 16, 6, minima=True), blocks.q2_k),
    "Q3_K": Kind(_MIDDLE_4[16], blocks.q3_k),
    "Q4_K": Kind(_FROM_0[4], blocks.q4_k),
    "Q5_K": Kind(_FROM_0[5], blocks.q5_k),
    "Q6_K": Kind(_MIDDLE_8[16], blocks.q6_k),
    "TQ1_0": Kind(_MIDDLE_4[256], tables.tq1_0),
    "TQ2_0": Kind(_MIDDLE_4[256], tables.tq2_0),
    "MXFP4": Kind(_MIDDLE_8[32], tables.mxfp4),
    "NVFP4": Kind(_MIDDLE_8[16], tables.nvfp4),
    "IQ1_S": Kind(_MIDDLE_8[32], tables.iq1_s),
    "IQ1_M": Kind(_MIDDLE_8[16], tables.iq1_m),
    "IQ2_XXS": Kind(_MIDDLE_8[32], tables.iq2_xxs),
    "IQ2_XS": Kind(_MIDDLE_8[16], tables.iq2_xs),
    "IQ2_S": Kind(_MIDDLE_8[16], tables.iq2_s),
    "IQ3_XXS": Kind(_MIDDLE_8[32], tables.iq3_xxs),
    "IQ3_S": Kind(_MIDDLE_8[32], tables.iq3_s),
    "IQ4_NL": Kind(_MIDDLE_8[32], tables.iq4_nl),
    "IQ4_XS": Kind(_MIDDLE_8[32], tables.iq4_xs),
}
"""By ggml's names. Dequantized, each equals what the package `gguf` makes of it, bit for bit.

The package does not dequantize Q1_0.
"""


@dataclass(frozen=True, eq=False)
class GgufIntegers(IntegerWeight):
    """A matrix. moved: the file's row for each of its rows; None: as they lie. factor: of all."""

    file: Path
    name: str
    stored: StoredTensor
    kind: Kind
    block_bytes: int
    moved: NDArray[np.int64] | None = None
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def form(self) -> Form:
        return self.kind.form

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order, about `most` elements at a time. Raises UserError for bad values."""
        count, columns = self.shape
        shape = count, self.stored.nbytes // count
        raw = np.memmap(self.file, np.uint8, "r", self.stored.offset, shape=shape)
        step = max(1, min(most, _MOST) // columns)
        for start in range(0, count, step):
            end = start + step
            some = raw[start:end] if self.moved is None else raw[self.moved[start:end]]
            yield self._rows(np.asarray(some))

    def _rows(self, some: Bytes) -> IntegerRows:
        count = len(some)
        with np.errstate(invalid="ignore"):
            parts = self._scaled(self.kind.parts(some.reshape(-1, self.block_bytes)))
        for values in (parts.scales, parts.minima):
            if values is not None and not (np.abs(values) < LARGEST_SCALE).all():
                raise UserError(
                    f"a scale of the tensor {self.name} of {self.file} is NaN or infinite",
                    DOWNLOAD_AGAIN,
                )
        q, scales = parts.q.reshape(count, -1), parts.scales.reshape(count, -1)
        if parts.minima is None:
            return IntegerRows(q, scales)
        assert self.form.zero is not None
        moved = q + np.uint8(self.form.zero)
        return IntegerRows(moved, scales, minima=parts.minima.reshape(count, -1))

    def _scaled(self, parts: Parts) -> Parts:
        if self.factor == 1:
            return parts
        minima = None if parts.minima is None else parts.minima * self.factor
        return Parts(parts.q, parts.scales * self.factor, minima)
