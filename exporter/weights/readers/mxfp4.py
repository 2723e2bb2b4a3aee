"""mxfp4 weights, as gpt-oss stores its experts: 32 values of 4 bits along a row share a power of 2.

blocks uint8 [...,K/32,16]: value 2i of a block is in the low half of byte i. scales uint8
[...,K/32]: w = value * 2^(scale - 127). OCP Microscaling Formats (MX) v1.0; 255 is NaN there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.arranged import Swapped
from snapexport.exporter.weights.forms.integers import E2M1
from snapexport.exporter.weights.readers.quantization import (
    AGAIN,
    ORIGINAL,
    Quantization,
    Spans,
    e8m0,
    map_bytes,
    pairs_of_bytes,
    replace_pairs,
    require_names,
    require_values,
    rows_of,
    steps,
    zeros,
)
from snapexport.exporter.weights.tensor_file import Calculated, Tensor
from snapexport.files.safetensors import TensorSpan

BLOCK = 32


@dataclass(frozen=True)
class Mxfp4(Quantization):
    """gpt-oss's experts: their names are only its own."""

    kind = "mxfp4"
    of_some_families = True

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Mxfp4":
        """Read quantization_config without its method. Raises UserError."""
        for name in ("modules_to_not_convert", "ignored_layers"):
            require_names(name, given.pop(name, None))
        require_values(cls.kind, given, {"dequantize": (True, False)})
        return cls()

    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """`x_blocks` [E,N,K/32,16] and `x_scales` [E,N,K/32] become x [E,K,N], as transformers'."""
        return replace_pairs(stored, ("_blocks", "_scales"), self._tensor)

    @staticmethod
    def _tensor(name: str, blocks: TensorSpan, scales: TensorSpan) -> Tensor:
        return Swapped(Mxfp4Tensor.of(name, blocks, scales))


@dataclass(frozen=True)
class Mxfp4Tensor(Calculated):
    """A tensor [...,N,K] that is dequantized to fp32 while it is read."""

    name: str
    packed: TensorSpan
    scales: TensorSpan
    dtype: str = "F32"

    @classmethod
    def of(cls, name: str, packed: TensorSpan, scales: TensorSpan) -> "Mxfp4Tensor":
        """Raises UserError for types and shapes that don't fit together."""
        if (packed.dtype, scales.dtype) != ("U8", "U8"):
            raise UserError(
                f"the blocks of the tensor {name} are stored as {packed.dtype}, its scales as "
                f"{scales.dtype}: mxfp4 has both as U8",
                ORIGINAL,
            )
        rank_fits = len(packed.shape) == 4 and packed.shape[-1] == BLOCK // 2
        if not rank_fits or scales.shape != packed.shape[:-1]:
            raise UserError(
                f"the blocks of the tensor {name} have shape {list(packed.shape)}, its scales "
                f"{list(scales.shape)}: mxfp4 has blocks [E,N,K/32,16] with a scale for each",
                AGAIN,
            )
        return cls(name, packed, scales)

    @property
    def shape(self) -> tuple[int, ...]:
        *leading, count, _ = self.packed.shape
        return *leading, count * BLOCK

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        *leading, columns = self.shape
        rows, count = prod(leading), columns // BLOCK
        packed = map_bytes(self.packed).reshape(rows, count, BLOCK // 2)
        scales = map_bytes(self.scales).reshape(rows, count)
        for start, end, is_zero in steps(self.packed, rows, rows_of(multiple, columns, most)):
            if is_zero:
                yield zeros((end - start) * columns)
                continue
            values = pairs_of_bytes(E2M1)[packed[start:end]].reshape(end - start, count, BLOCK)
            values *= self._factors(scales[start:end])[..., None]
            yield values.reshape(-1)

    def _factors(self, scales: NDArray[np.uint8]) -> NDArray[np.float32]:
        factors = e8m0(scales)
        if np.isnan(factors).any():
            raise UserError(f"a scale of the tensor {self.name} is NaN", AGAIN)
        return factors
