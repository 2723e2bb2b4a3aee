"""bitsandbytes: 4 bits as places in a table of 16 floats, 8 bits as integers with a scale a row.

4 bits: x.weight has two values in a byte, the first in the high half; x.weight.absmax has a factor
for each block of the flat matrix, and may be places in a table itself (double quantization); the
shape is in x.weight.quant_state.bitsandbytes__nf4 as JSON. 8 bits: x.weight int8, x.SCB [N].
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.readers.grouped import Groups
from snapexport.exporter.weights.readers.quantization import (
    AGAIN,
    Quantization,
    Spans,
    array,
    as_scales,
    by_stem,
    map_bytes,
    pairs_of_bytes,
    require,
    require_matrix,
    require_names,
    require_scaled,
    require_value,
    require_values,
    rows_of,
    with_weight,
)
from snapexport.exporter.weights.readers.row_layouts import SignedRows
from snapexport.exporter.weights.tensor_file import Calculated, Tensor
from snapexport.files.safetensors import TensorSpan

_VALUES: dict[str, tuple[object, ...]] = {
    "bnb_4bit_quant_type": ("nf4", "fp4"),
    "llm_int8_has_fp16_weight": (False,),
}
_NEUTRAL = (
    *("bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"),
    *("llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "bnb_4bit_blocksize"),
)
_STATE = ".quant_state.bitsandbytes__"
_STATE_BYTES = 1 << 12
_NESTED = ("nested_absmax", "nested_quant_map")
_OF_127 = np.float32(1 / 127)
Parts = Mapping[str, TensorSpan]


@dataclass(frozen=True)
class BitsAndBytes(Quantization):
    """bits: 4 or 8."""

    bits: int
    left_out: tuple[str, ...] = ()
    kind = "bitsandbytes"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "BitsAndBytes":
        """Read quantization_config without its method. Raises UserError."""
        require_names("llm_int8_skip_modules", given.pop("llm_int8_skip_modules", None))
        has: dict[int, bool] = {}
        for bits in (4, 8):
            for name in (f"load_in_{bits}bit", f"_load_in_{bits}bit"):
                value = given.pop(name, False)
                require_value(name, value, (True, False))
                has[bits] = has.get(bits, False) or value
        require_value("load_in_8bit", has[8], (not has[4],))
        require_values(cls.kind, given, _VALUES, _NEUTRAL)
        notes = ("weights in nf4 and fp4 are not integers: they are dequantized",)
        return cls(4, notes) if has[4] else cls(8)

    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """With x.weight in the place of its parts."""
        return _of_8_bits(stored) if self.bits == 8 else _of_4_bits(stored)


def _of_8_bits(stored: Spans) -> dict[str, Tensor]:
    found, others = by_stem(stored, ("SCB",), ("weight_format",))
    made: dict[str, Tensor] = {}
    for stem, parts in found.items():
        name, weight = f"{stem}.weight", with_weight(stem, parts, others)
        rows, columns = require_matrix(name, weight)
        require(name, weight, ("I8",), (rows, columns))
        require(f"{stem}.SCB", parts["SCB"], ("F32",), (rows,))
        if (layout := parts.get("weight_format")) is not None and map_bytes(layout).any():
            raise UserError(f"the tensor {name} is not stored by rows", "save the model again")
        groups = Groups(columns, columns)
        made[name] = _Int8(
            name=name, count=rows, groups=groups, bits=8, weights=weight, scales=parts["SCB"]
        )
    require_scaled(others)
    return {**others, **made}


@dataclass(frozen=True, eq=False, kw_only=True)
class _Int8(SignedRows):
    """Scales are largest magnitudes: a row's 127."""

    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        return as_scales(self.name, super()._scales(start, end)) * _OF_127


def _of_4_bits(stored: Spans) -> dict[str, Tensor]:
    others, states = dict(stored), {}
    for name in stored:
        stem, found, _ = name.partition(_STATE)
        if found:
            states[stem] = others.pop(name)
    made: dict[str, Tensor] = {}
    for stem, state in states.items():
        parts = {}
        for end in ("absmax", "quant_map", *_NESTED):
            if f"{stem}.{end}" in others:
                parts[end] = others.pop(f"{stem}.{end}")
        if stem not in others:
            raise UserError(f"the checkpoint has {stem}{_STATE}... without {stem}", AGAIN)
        made[stem] = TableTensor.of(stem, others.pop(stem), parts, _state(stem, state))
    require_scaled(others)
    return {**others, **made}


def _state(stem: str, span: TensorSpan) -> dict[str, Any]:
    if span.nbytes <= _STATE_BYTES:
        try:
            found = json.loads(bytes(map_bytes(span)))
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
    raise UserError(f"the quant_state of the tensor {stem} is not a table", AGAIN)


@dataclass(frozen=True, eq=False)
class TableTensor(Calculated):
    """A matrix of places in a table, dequantized to fp32 while it is read.

    block, nested_block: elements that share a factor, of the matrix and of its factors.
    """

    name: str
    size: tuple[int, int]
    weight: TensorSpan
    parts: Parts
    block: int
    nested_block: int
    offset: float
    dtype: str = "F32"

    @classmethod
    def of(
        cls, name: str, weight: TensorSpan, parts: Parts, state: Mapping[str, Any]
    ) -> "TableTensor":
        """Raises UserError for types and shapes that don't fit together."""
        for end in ("absmax", "quant_map"):
            if end not in parts:
                raise UserError(f"the checkpoint has {name} without {name}.{end}", AGAIN)
        shape, block = _shape(name, state.get("shape")), _block(name, state.get("blocksize"))
        size = prod(shape)
        count = -(-size // block)
        if weight.nbytes != -(-size // 2):
            raise UserError(f"the tensor {name} has not the bytes of {list(shape)}", AGAIN)
        require(f"{name}.quant_map", parts["quant_map"], ("F32",), (16,))
        nested, offset = 1, 0.0
        if "nested_absmax" in parts or "nested_quant_map" in parts:
            nested, offset = _read_nested(name, parts, state, count)
        else:
            require(f"{name}.absmax", parts["absmax"], ("F32",), (count,))
        return cls(name, shape, weight, parts, block, nested, offset)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        rows, columns = self.size
        size, step = rows * columns, rows_of(multiple, columns, most) * columns
        table = pairs_of_bytes(as_scales(self.name, array(self.parts["quant_map"])))[:, ::-1]
        packed = map_bytes(self.weight)
        for start in range(0, size, step):
            end = min(start + step, size)
            first = start // 2
            values = table[packed[first : -(-end // 2)]].reshape(-1)
            values = values[start - 2 * first : end - 2 * first]
            places = np.arange(start, end) // self.block
            yield values * self._factors(places[0], places[-1] + 1)[places - places[0]]

    def _factors(self, start: int, end: int) -> NDArray[np.float32]:
        stored = array(self.parts["absmax"])[start:end]
        if "nested_absmax" not in self.parts:
            return as_scales(self.name, stored)
        outer = as_scales(self.name, array(self.parts["nested_absmax"]))
        table = as_scales(self.name, array(self.parts["nested_quant_map"]))
        found: NDArray[np.float32] = table[stored]
        found = found * outer[np.arange(start, end) // self.nested_block]
        return found + np.float32(self.offset)


def _read_nested(
    name: str, parts: Parts, state: Mapping[str, Any], count: int
) -> tuple[int, float]:
    """The block and the offset of factors that are quantized themselves. Raises UserError."""
    for end in _NESTED:
        if end not in parts:
            raise UserError(f"the checkpoint has {name} without {name}.{end}", AGAIN)
    block, offset = _block(name, state.get("nested_blocksize")), state.get("nested_offset")
    if not isinstance(offset, float | int) or not abs(offset) < 1e30:
        raise UserError(f"nested_offset of the tensor {name} is {offset!r:.100}", AGAIN)
    require(f"{name}.absmax", parts["absmax"], ("U8",), (count,))
    require(f"{name}.nested_absmax", parts["nested_absmax"], ("F32",), (-(-count // block),))
    require(f"{name}.nested_quant_map", parts["nested_quant_map"], ("F32",), (256,))
    return block, float(offset)


def _shape(name: str, value: object) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:
        rows, columns = value
        if all(type(one) is int and 0 < one < 1 << 31 for one in value):
            return rows, columns
    raise UserError(f"the shape of the tensor {name} is {value!r:.100}, not a matrix's", AGAIN)


def _block(name: str, value: object) -> int:
    if type(value) is int and 1 <= value <= 1 << 16:
        return value
    raise UserError(f"a block of the tensor {name} has {value!r:.100} elements", AGAIN)
