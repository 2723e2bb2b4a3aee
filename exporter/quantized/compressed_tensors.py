"""compressed-tensors, as llm-compressor writes it: integers, fp8, and floats of 4 bits.

x.weight_packed is int32 for integers and uint8 for floats of 4 bits; x.weight is int8 or fp8. All
have x.weight_scale. Which modules are quantized shows in the tensors; how, the schemes say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from snapexport.errors import UserError
from snapexport.exporter.quantized.fp8 import Fp8Tensor
from snapexport.exporter.quantized.packed import words_for
from snapexport.exporter.quantized.parts import (
    FLOATS,
    array,
    by_stem,
    require,
    require_matrix,
    require_one,
    require_scaled,
    with_weight,
    without,
)
from snapexport.exporter.quantized.quantization import (
    AGAIN,
    KEY,
    ORIGINAL,
    Quantization,
    Spans,
    require_names,
    require_values,
)
from snapexport.exporter.quantized.row_layouts import Fp4Rows, PackedRows, SignedRows
from snapexport.exporter.quantized.schemes import Scheme, read_scheme, told_of
from snapexport.exporter.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "dense"),
)
_VALUES: dict[str, tuple[object, ...]] = {
    "format": _FORMATS,
    "quantization_status": ("compressed", "frozen"),
    "sparsity_config": (None, {}),
    "transform_config": (None, {}),
    "moe_sparsity_config": (None, {}),
}
_NEUTRAL = ("global_compression_ratio", "version", "run_compressed", "producer")
_PARTS = (
    *("weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx"),
    "weight_global_scale",
)
_OF_ACTIVATIONS = (
    *("input_scale", "input_zero_point", "input_global_scale"),
    *("output_scale", "output_zero_point"),
)
Parts = Mapping[str, TensorSpan]


@dataclass(frozen=True)
class CompressedTensors(Quantization):
    """schemes: of some modules each."""

    schemes: tuple[Scheme, ...]
    told: tuple[str, ...] = ()
    block: tuple[int, int] = (0, 0)
    kind = "compressed-tensors"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "CompressedTensors":
        """Of quantization_config without its method. Raises UserError."""
        groups, caches = given.pop("config_groups", None), given.pop("kv_cache_scheme", None)
        require_names("ignore", given.pop("ignore", None))
        sparsity = given.get("sparsity_config")
        if isinstance(sparsity, dict) and sparsity.get("format") == "dense":
            del given["sparsity_config"]
        if not isinstance(groups, dict):
            raise UserError(f"{KEY}: config_groups is no table of groups", "correct config.json")
        require_values(cls.kind, given, _VALUES, _NEUTRAL)
        read = tuple(read_scheme(name, one) for name, one in groups.items())
        schemes = tuple(one for one in read if one)
        blocks = [one.fp8_block for one in schemes if one.is_float and one.bits == 8]
        return cls(schemes, told_of(groups, caches), blocks[0] if blocks else (0, 0))

    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """With x.weight in the place of its parts."""
        found, others = by_stem(without(stored, _OF_ACTIVATIONS), ("weight_scale",), _PARTS)
        made: dict[str, Tensor] = {}
        for stem, parts in found.items():
            if "weight_packed" not in parts:
                parts["weight"] = with_weight(stem, parts, others)
            made[f"{stem}.weight"] = self._weight(stem, parts)
        require_scaled(others)
        return {**others, **made}

    def _weight(self, stem: str, parts: Parts) -> Tensor:
        """By the first scheme that fits, of those that name the module, or its class."""
        schemes = self.schemes
        if len(schemes) > 1:
            named = tuple(one for one in schemes if one.names(stem))
            schemes = named or tuple(one for one in schemes if one.names_classes) or schemes
        refusals = []
        for scheme in schemes:
            try:
                return _by_scheme(stem, parts, scheme)
            except UserError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]
        raise UserError(f"no group of {KEY} says how {stem} is quantized", "correct config.json")


def _by_scheme(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    packed = parts.get("weight_packed")
    whole = parts.get("weight")
    if packed is not None and packed.dtype == "U8":
        return _float_of_4_bits(stem, parts, scheme)
    if packed is not None:
        return _packed(stem, parts, scheme)
    assert whole is not None
    if whole.dtype == "F8_E4M3":
        _require_kind(stem, scheme, 8, is_float=True)
        grid = scheme.scales(*require_matrix(f"{stem}.weight", whole))
        name, scales = f"{stem}.weight", parts["weight_scale"]
        return Fp8Tensor.of(name, whole, scales, scheme.fp8_block, grid)
    return _signed(stem, parts, scheme)


def _packed(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    name, packed = f"{stem}.weight_packed", parts["weight_packed"]
    _require_kind(stem, scheme, scheme.bits, is_float=False)
    rows, words = require_matrix(name, packed)
    columns = words * 32 // scheme.bits
    if (shape := parts.get("weight_shape")) is not None:
        require(f"{stem}.weight_shape", shape, ("I64", "I32"), (2,))
        columns = int(np.asarray(array(shape)).astype(np.int64)[1])
    if not 0 < columns <= words * 32:
        raise UserError(f"the tensor {stem}.weight_shape has {columns} columns", AGAIN)
    require(name, packed, ("I32",), (rows, words_for(columns, scheme.bits)))
    return PackedRows(
        name=f"{stem}.weight",
        count=rows,
        bits=scheme.bits,
        weights=packed,
        **_common(stem, parts, scheme, rows, columns),
    ).readable


def _signed(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    _require_kind(stem, scheme, scheme.bits, is_float=False)
    rows, columns = require_matrix(f"{stem}.weight", parts["weight"])
    require(f"{stem}.weight", parts["weight"], ("I8",), (rows, columns))
    return SignedRows(
        name=f"{stem}.weight",
        count=rows,
        bits=8,
        weights=parts["weight"],
        **_common(stem, parts, scheme, rows, columns),
    ).readable


def _common(stem: str, parts: Parts, scheme: Scheme, rows: int, columns: int) -> dict[str, Any]:
    """What integers have in either layout."""
    groups, wanted = scheme.groups(columns), scheme.scales(rows, columns)
    require_one(f"{stem}.weight_scale", parts["weight_scale"], FLOATS, wanted)
    zeros, g_idx = parts.get("weight_zero_point"), parts.get("weight_g_idx")
    if zeros is None and not scheme.symmetric:
        raise UserError(f"the checkpoint has {stem} without {stem}.weight_zero_point", AGAIN)
    if zeros is not None and zeros.dtype == "I32":
        of_words = words_for(rows, scheme.bits), groups.count
        require(f"{stem}.weight_zero_point", zeros, ("I32",), of_words)
    elif zeros is not None:
        require_one(f"{stem}.weight_zero_point", zeros, ("I8",), wanted)
    if g_idx is not None:
        require(f"{stem}.weight_g_idx", g_idx, ("I32", "I64"), (columns,))
        if (np.asarray(array(g_idx)) == -1).all():  # made, and never set
            g_idx = None
    return {
        "groups": groups,
        "scales": parts["weight_scale"],
        "zeros": zeros,
        "g_idx": g_idx,
        "height": scheme.size[0] if scheme.strategy == "block" else 1,
    }


def _float_of_4_bits(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    _require_kind(stem, scheme, 4, is_float=True)
    packed, scales = parts["weight_packed"], parts["weight_scale"]
    rows, half = require_matrix(f"{stem}.weight_packed", packed)
    groups, divisor = scheme.groups(2 * half), parts.get("weight_global_scale")
    wanted = scheme.scales(rows, 2 * half)
    if divisor is None:
        require(f"{stem}.weight_scale", scales, ("U8", "F8_E8M0"), wanted)
    else:
        require(f"{stem}.weight_scale", scales, ("F8_E4M3", *FLOATS), wanted)
        require_one(f"{stem}.weight_global_scale", divisor, FLOATS, (1, 1))
    return Fp4Rows(
        name=f"{stem}.weight",
        count=rows,
        groups=groups,
        weights=packed,
        scales=scales,
        divisor=divisor,
    ).readable


def _require_kind(stem: str, scheme: Scheme, bits: int, *, is_float: bool) -> None:
    if scheme.is_float != is_float or scheme.bits != bits:
        kind = "float" if scheme.is_float else "int"
        raise UserError(
            f"{KEY} says that {stem} is of type {kind} with {scheme.bits} bits, and its tensors "
            "are not",
            ORIGINAL,
        )
