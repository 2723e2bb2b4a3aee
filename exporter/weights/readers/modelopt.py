"""NVIDIA ModelOpt's NVFP4, FP8 and MXFP8, as its export for Hugging Face writes them.

NVFP4: x.weight uint8 [N,K/2], x.weight_scale fp8 [N,K/16], and x.weight_scale_2, one number for
all. FP8: x.weight fp8 [N,K] with one x.weight_scale, or one a row. MXFP8: powers of two [N,K/32].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snapexport.errors import UserError
from snapexport.exporter.weights.readers.fp8 import WIDTH, Fp8Tensor, fp8_by_shapes
from snapexport.exporter.weights.readers.grouped import Groups
from snapexport.exporter.weights.readers.quantization import (
    FLOATS,
    KEY,
    ORIGINAL,
    OfParts,
    left_out_of,
    require,
    require_matrix,
    require_names,
    require_one,
    require_value,
    require_values,
)
from snapexport.exporter.weights.readers.row_layouts import Fp4Rows
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_ALGORITHMS = ("NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8")
_VALUES: dict[str, tuple[object, ...]] = {
    "has_zero_point": (False, None),
    "pre_quant_scale": (False, None),
    "group_size": (None, 16, 32),
}
_NEUTRAL = ("producer", "config_groups", "quantized_layers")
"""Keys that say the same as the algorithm."""
_CHANGING = ("pre_quant_scale", "svdquant_lora_a", "svdquant_lora_b", "weight_zero_point")
"""Parts that change what a layer computes."""
_FP4_BLOCK, _MX_BLOCK = 16, 32
Parts = Mapping[str, TensorSpan]


@dataclass(frozen=True)
class ModelOpt(OfParts):
    """Tensors show which modules are quantized, and how."""

    left_out: tuple[str, ...] = ()
    block: tuple[int, int] = (0, 0)
    kind = "modelopt"
    needed = ("weight_scale",)
    possible = ("weight_scale_2", *_CHANGING)
    ignored = ("input_scale", "output_scale")

    @classmethod
    def of(cls, given: dict[str, Any]) -> "ModelOpt":
        """Read quantization_config, or hf_quant_config.json. Raises UserError."""
        inner = given.pop("quantization", {})
        if not isinstance(inner, dict):
            raise UserError(f"{KEY}: quantization is not a table", "correct hf_quant_config.json")
        given |= inner
        algorithms = _algorithms(given.pop("quant_algo", None), given.get("quantized_layers"))
        for name in ("ignore", "exclude_modules"):
            require_names(name, given.pop(name, None))
        caches = given.pop("kv_cache_scheme", None) or given.pop("kv_cache_quant_algo", None)
        given.pop("kv_cache_quant_algo", None)
        require_values(cls.kind, given, _VALUES, _NEUTRAL)
        quantized = any(not name.startswith("W4A16") for name in algorithms)
        notes = left_out_of({"": {"input_activations": quantized}}, caches)
        block = (1, _MX_BLOCK) if "MXFP8" in algorithms else (WIDTH, WIDTH)
        return cls(notes, block if any("FP8" in one for one in algorithms) else (0, 0))

    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The matrix in fp8, or in floats of 4 bits."""
        for end in _CHANGING:
            if end in parts:
                raise UserError(f"the checkpoint has {stem}.{end}, which is not read", ORIGINAL)
        name, scales, weight = f"{stem}.weight", parts["weight_scale"], parts["weight"]
        if weight.dtype == "U8":
            return _nvfp4(stem, parts, weight)
        if scales.dtype in ("U8", "F8_E8M0"):
            return Fp8Tensor.of(name, weight, scales, (1, _MX_BLOCK))
        return fp8_by_shapes(name, weight, scales)


def _nvfp4(stem: str, parts: Parts, weight: TensorSpan) -> Tensor:
    rows, half = require_matrix(f"{stem}.weight", weight)
    groups, factor = Groups(2 * half, _FP4_BLOCK), parts.get("weight_scale_2")
    if factor is None:
        raise UserError(f"the checkpoint has {stem} without {stem}.weight_scale_2", ORIGINAL)
    require(f"{stem}.weight_scale", parts["weight_scale"], ("F8_E4M3",), (rows, groups.count))
    require_one(f"{stem}.weight_scale_2", factor, FLOATS, (1, 1))
    return Fp4Rows(
        name=f"{stem}.weight",
        count=rows,
        groups=groups,
        weights=weight,
        scales=parts["weight_scale"],
        factor=factor,
    ).readable


def _algorithms(named: object, layers: object) -> tuple[str, ...]:
    """How weights are quantized: in one way, in several, or not at all. Raises UserError."""
    found = [] if named is None else [named]
    if named == "MIXED_PRECISION":
        of_layers = list(layers.values()) if isinstance(layers, dict) else [None]
        found = [one.get("quant_algo") if isinstance(one, dict) else one for one in of_layers]
    for one in found:
        require_value("quant_algo", one, _ALGORITHMS)
    return tuple(str(one) for one in found)
