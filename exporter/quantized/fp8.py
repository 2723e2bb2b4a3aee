"""fp8 weights with a scale for each block of rows and columns, as DeepSeek-V3 stores them.

w = q * s: q is float8_e4m3fn [N,K]; s [ceil(N/128), ceil(K/128)] is fp32, or a power of two in one
byte (ue8m0). Blocks at the end of a row or column may be cut off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.quantized.rows import AGAIN, mapped, rows_of, steps, zeros
from snapexport.exporter.tensor_file import Calculated
from snapexport.files.safetensors import TensorSpan

_SCALE_TYPES = {"F32": np.float32, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "BF16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Fp8Tensor(Calculated):
    """A matrix that is dequantized to fp32 while it is read."""

    name: str
    stored: TensorSpan
    scales: TensorSpan
    block: tuple[int, int]
    dtype: str = "F32"

    @classmethod
    def of(
        cls, name: str, stored: TensorSpan, scales: TensorSpan, block: tuple[int, int]
    ) -> "Fp8Tensor":
        """Raises UserError for types and shapes that don't fit together."""
        if stored.dtype != "F8_E4M3" or scales.dtype not in _SCALE_TYPES:
            raise UserError(
                f"the tensor {name} is stored as {stored.dtype} with scales as {scales.dtype}: "
                f"fp8 weights are F8_E4M3, with scales as {', '.join(_SCALE_TYPES)}",
                "start from the original checkpoint",
            )
        grid = tuple(-(-size // one) for size, one in zip(stored.shape, block, strict=False))
        if len(stored.shape) != 2 or scales.shape != grid:
            raise UserError(
                f"the tensor {name} has shape {list(stored.shape)} and scales "
                f"{list(scales.shape)}, which are not one for each block of {list(block)}",
                AGAIN,
            )
        return cls(name, stored, scales, block)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        (rows, columns), (height, width) = self.shape, self.block
        stored = mapped(self.stored).reshape(rows, columns)
        factors: NDArray[np.float32] | None = None
        for start, end, is_zero in steps(self.stored, rows, rows_of(multiple, columns, most)):
            if is_zero:
                yield zeros((end - start) * columns)
                continue
            factors = self.factors() if factors is None else factors
            values = _values()[stored[start:end]]
            of_rows = factors[np.arange(start, end) // height]
            values *= of_rows.repeat(width, axis=1)[:, :columns]
            yield values.reshape(-1)

    def factors(self) -> NDArray[np.float32]:
        """The scales in fp32. Raises UserError for one that is no factor."""
        stored = mapped(self.scales).view(_SCALE_TYPES[self.scales.dtype])
        factors: NDArray[np.float32] = stored.astype(np.float32).reshape(self.scales.shape)
        if not (np.isfinite(factors) & (factors >= 0)).all():
            raise UserError(
                f"a scale of the tensor {self.name} is negative, NaN or infinite", AGAIN
            )
        return factors


@cache
def _values() -> NDArray[np.float32]:
    """The values of all bytes."""
    values: NDArray[np.float32] = (
        np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )
    return values
