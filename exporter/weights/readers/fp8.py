"""fp8 weights with a scale for each block of rows and columns, as DeepSeek-V3 stores them.

w = q * s: q is float8_e4m3fn [N,K]; s [ceil(N/128), ceil(K/128)] is fp32, or a power of two in one
byte (ue8m0). Blocks at the end of a row or column may be cut off. One scale for a matrix, or for
each row, is read as that of all blocks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.readers.quantization import (
    AGAIN,
    KEY,
    ORIGINAL,
    OfParts,
    Quantization,
    Spans,
    map_bytes,
    replace_pairs,
    require_names,
    require_values,
    rows_of,
    steps,
    zeros,
)
from snapexport.exporter.weights.tensor_file import Calculated, Tensor
from snapexport.files.safetensors import TensorSpan

_SCALE_TYPES = {"F32": np.float32, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "BF16": ml_dtypes.bfloat16}
_SCALE_TYPES |= {"F16": np.float16, "U8": ml_dtypes.float8_e8m0fnu}
_SCALES = "_scale_inv"
_LARGEST_BLOCK = 1 << 14
_NAN = 127
"""NaN of either sign."""
WIDTH = 128
"""Rows and columns of a block where a scale is of a whole matrix or row."""
_NAMES = ("modules_to_not_convert", "ignored_layers")
"""Lists of modules that are not quantized. Their tensors show it by their types."""
_VALUES: Mapping[str, tuple[object, ...]] = {
    "dequantize": (True, False),
    "activation_scheme": ("dynamic", "static"),
    "fmt": ("e4m3",),
    "scale_fmt": ("float", "ue8m0"),
    "expert_dtype": ("fp8",),
    "modules_to_convert": (None,),
}
"""The values of further keys that don't change how weights are dequantized."""
STATIC = (
    "activations stay in the build's dtype: the checkpoint's scales of activations are not read"
)


@dataclass(frozen=True)
class Fp8(Quantization):
    """whole: whether a scale is of a whole matrix."""

    block: tuple[int, int] = (WIDTH, WIDTH)
    whole: bool = False
    left_out: tuple[str, ...] = ()
    kind = "fp8"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Fp8":
        """Read quantization_config without its method. Raises UserError."""
        for name in _NAMES:
            require_names(name, given.pop(name, None))
        size = given.pop("weight_block_size", [WIDTH, WIDTH])
        block = (WIDTH, WIDTH) if size is None else block_size("weight_block_size", size)
        require_values(cls.kind, given, _VALUES)
        notes = (STATIC,) if given.get("activation_scheme") == "static" else ()
        return cls(block, size is None, notes)

    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """`x` [N,K] and `x_scale_inv` become x [N,K]."""
        found = replace_pairs(stored, ("", _SCALES), self._tensor)
        for name, tensor in found.items():
            if isinstance(tensor, TensorSpan) and tensor.dtype == "F8_E4M3":
                raise UserError(f"the tensor {name} is fp8 and has no {name}{_SCALES}", AGAIN)
        return found

    def _tensor(self, name: str, stored: TensorSpan, scales: TensorSpan) -> Tensor:
        grid = (1, 1) if self.whole else None
        return Fp8Tensor.of(name, stored, scales, self.block, grid)


def block_size(name: str, value: object) -> tuple[int, int]:
    """Rows and columns of a block. Raises UserError."""
    if isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value):
        rows, columns = value
        if 1 <= rows <= _LARGEST_BLOCK and 1 <= columns <= _LARGEST_BLOCK:
            return rows, columns
    raise UserError(
        f"{KEY}: {name} is {value!r:.100}, not two numbers from 1 to {_LARGEST_BLOCK}",
        ORIGINAL,
    )


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
        cls,
        name: str,
        stored: TensorSpan,
        scales: TensorSpan,
        block: tuple[int, int],
        grid: tuple[int, int] | None = None,
    ) -> "Fp8Tensor":
        """Raises UserError for types and shapes that don't fit together.

        grid: of scales where they are fewer than blocks, each of which has one all the same.
        """
        if stored.dtype != "F8_E4M3" or scales.dtype not in _SCALE_TYPES:
            raise UserError(
                f"the tensor {name} is stored as {stored.dtype} with scales as {scales.dtype}: "
                f"fp8 weights are F8_E4M3, with scales as {', '.join(_SCALE_TYPES)}",
                ORIGINAL,
            )
        wanted = grid or tuple(-(-n // one) for n, one in zip(stored.shape, block, strict=False))
        fits = scales.shape in (wanted, wanted[:1] if grid else wanted)
        fits = fits or (wanted == (1, 1) and prod(scales.shape) == 1)
        if len(stored.shape) != 2 or not fits:
            of = f"of {list(wanted)}" if grid else f"one for each block of {list(block)}"
            raise UserError(
                f"the tensor {name} has shape {list(stored.shape)} and scales "
                f"{list(scales.shape)}, which are not {of}",
                AGAIN,
            )
        return cls(name, stored, scales, block)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        (rows, columns), (height, width) = self.shape, self.block
        stored = map_bytes(self.stored).reshape(rows, columns)
        factors: NDArray[np.float32] | None = None
        for start, end, is_zero in steps(self.stored, rows, rows_of(multiple, columns, most)):
            if is_zero:
                yield zeros((end - start) * columns)
                continue
            factors = self.factors() if factors is None else factors
            some = stored[start:end]
            if ((some & 127) == _NAN).any():
                raise UserError(f"a value of the tensor {self.name} is NaN", AGAIN)
            values = _values()[some]
            of_rows = factors[np.arange(start, end) // height]
            values *= of_rows.repeat(width, axis=1)[:, :columns]
            yield values.reshape(-1)

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of the rows and of the columns."""
        (rows, columns), (height, width) = self.shape, self.block
        return -(-rows // height), -(-columns // width)

    @property
    def by_row(self) -> bool:
        """Whether all blocks of a row have one scale."""
        return len(self.scales.shape) < 2 or self.scales.shape[1] == 1

    def factors(self) -> NDArray[np.float32]:
        """The scale of each block in fp32. Raises UserError for one that is not a factor."""
        stored = map_bytes(self.scales).view(_SCALE_TYPES[self.scales.dtype])
        shape = self.scales.shape if len(self.scales.shape) == 2 else (-1, 1)
        factors: NDArray[np.float32] = stored.astype(np.float32).reshape(shape)
        if not (np.isfinite(factors) & (factors >= 0)).all():
            raise UserError(
                f"a scale of the tensor {self.name} is negative, NaN or infinite", AGAIN
            )
        return np.broadcast_to(factors, self.grid)


def fp8_by_shapes(name: str, stored: TensorSpan, scales: TensorSpan) -> Fp8Tensor:
    """A matrix with one scale, or one for each row, as their shape says. Raises UserError."""
    if prod(scales.shape) == 1 or len(stored.shape) != 2:
        return Fp8Tensor.of(name, stored, scales, (WIDTH, WIDTH), (1, 1))
    return Fp8Tensor.of(name, stored, scales, (1, WIDTH), (stored.shape[0], 1))


@cache
def _values() -> NDArray[np.float32]:
    """The values of all bytes."""
    values: NDArray[np.float32] = (
        np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )
    return values


@dataclass(frozen=True)
class Fbgemm(OfParts):
    """A scale for each row."""

    left_out: tuple[str, ...] = (STATIC,)
    block: tuple[int, int] = (1, WIDTH)
    kind = "fbgemm_fp8"
    needed = ("weight_scale",)
    possible = ("input_scale_ub",)

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Fbgemm":
        """Read quantization_config without its method. Raises UserError."""
        require_names("modules_to_not_convert", given.pop("modules_to_not_convert", None))
        require_values(cls.kind, given, {}, ("activation_scale_ub",))
        return cls()

    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The matrix in fp8."""
        return fp8_by_shapes(f"{stem}.weight", parts["weight"], parts["weight_scale"])
