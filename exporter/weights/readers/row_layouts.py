"""Weights whose rows follow one another: packed, in a byte each, or as floats of 4 bits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.forms.integers import Fp4
from snapexport.exporter.weights.readers.grouped import GroupedWeight, unpack
from snapexport.exporter.weights.readers.quantization import (
    AGAIN,
    array,
    as_scales,
    doubled_e2m1,
    e8m0,
    pairs_of_bytes,
)
from snapexport.files.safetensors import TensorSpan

_MIDDLE = 128


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredRows(GroupedWeight):
    """scales: [rows/height,groups], or one for all; one for `height` rows.

    zeros: signed bytes like those of the scales, or packed along the rows; None: none.
    """

    weights: TensorSpan
    scales: TensorSpan
    zeros: TensorSpan | None = None
    height: int = 1

    @property
    def zero(self) -> int | None:
        """The zero of all groups; None if each has its own."""
        return self.middle if self.symmetric or self.zeros is None else None

    @property
    def contradicts(self) -> bool:
        """Whether the weight is symmetric, and other zeros are stored. Raises UserError."""
        return self.zeros is not None and super().contradicts

    def _zeros(self, start: int, end: int) -> NDArray[np.uint8]:
        assert self.zeros is not None
        if self.zeros.dtype == "I32":
            first, last = start * self.bits // 32, -(-end * self.bits // 32)
            words = array(self.zeros)[first:last].T
            return np.ascontiguousarray(unpack(words, self.bits, end - start).T)
        signed = self._of_rows(array(self.zeros), start, end).astype(np.int16)
        found = signed + self.middle
        if found.min() < 0 or found.max() >= 1 << self.bits:
            raise UserError(
                f"a zero point of the tensor {self.name} is not of {self.bits} bits", AGAIN
            )
        return found.astype(np.uint8)

    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        return self._of_rows(array(self.scales), start, end)

    def _of_rows(self, values: NDArray[Any], start: int, end: int) -> NDArray[Any]:
        if values.size == 1:
            return np.broadcast_to(values.reshape(1, 1), (end - start, self.groups.count))
        of_rows = values.reshape(-1, self.groups.count)
        return of_rows[np.arange(start, end) // self.height]


class PackedRows(StoredRows):
    """Integers in words of 32 bits, from the lowest bit on."""

    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        return unpack(array(self.weights)[start:end], self.bits, self.groups.columns)


class SignedRows(StoredRows):
    """A signed byte each."""

    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = array(self.weights)[start:end].view(np.uint8) ^ np.uint8(_MIDDLE)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Fp4Rows(StoredRows):
    """Floats e2m1, two in a byte, doubled. divisor, factor: one number for the whole weight."""

    bits: int = 8
    divisor: TensorSpan | None = None
    factor: TensorSpan | None = None

    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = pairs_of_bytes(doubled_e2m1())[array(self.weights)[start:end]]
        return found.reshape(end - start, -1)

    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        stored = self._of_rows(array(self.scales), start, end)
        is_power = self.scales.dtype in ("U8", "F8_E8M0")
        scales = e8m0(stored) if is_power else stored.astype(np.float32)
        with np.errstate(over="ignore"):  # an infinite scale is refused when it is read
            if self.divisor is not None:
                scales = scales / self._whole(self.divisor)
            if self.factor is not None:
                scales = scales * self._whole(self.factor)
        return scales * np.float32(0.5)

    @property
    def floats(self) -> Fp4 | None:
        """NVFP4 as it is stored. Raises UserError for scales that are NaN."""
        if self.scales.dtype != "F8_E4M3" or self.groups.size != 16 or self.groups.columns % 16:
            return None
        as_scales(self.name, array(self.scales))
        factor = np.float32(1) if self.divisor is None else 1 / self._whole(self.divisor)
        return Fp4(
            self.weights,
            self.scales,
            factor if self.factor is None else factor * self._whole(self.factor),
        )

    def _whole(self, span: TensorSpan) -> np.float32:
        value = np.float32(array(span).reshape(-1)[0])
        if not (np.isfinite(value) and value > 0):
            raise UserError(
                f"the global scale of the tensor {self.name} is {value}, not a positive number",
                AGAIN,
            )
        return value
