"""fp8 by FBGEMM, as Llama 3.1 405B is published: x.weight [N,K], x.weight_scale [N,1]."""

from dataclasses import dataclass
from typing import Any

from snapexport.exporter.quantized.fp8 import STATIC, WIDTH, fp8_by_shapes
from snapexport.exporter.quantized.parts import by_stem, require_scaled, with_weight
from snapexport.exporter.quantized.quantization import (
    Quantization,
    Spans,
    require_names,
    require_values,
)
from snapexport.exporter.tensor_file import Tensor


@dataclass(frozen=True)
class Fbgemm(Quantization):
    """A scale for each row."""

    told: tuple[str, ...] = (STATIC,)
    block: tuple[int, int] = (1, WIDTH)
    kind = "fbgemm_fp8"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Fbgemm":
        """Of quantization_config without its method. Raises UserError."""
        require_names("modules_to_not_convert", given.pop("modules_to_not_convert", None))
        require_values(cls.kind, given, {}, ("activation_scale_ub",))
        return cls()

    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """With x.weight in the place of its parts."""
        found, others = by_stem(stored, ("weight_scale",), ("input_scale_ub",))
        made: dict[str, Tensor] = {}
        for stem, parts in found.items():
            weight = with_weight(stem, parts, others)
            made[f"{stem}.weight"] = fp8_by_shapes(f"{stem}.weight", weight, parts["weight_scale"])
        require_scaled(others)
        return {**others, **made}
