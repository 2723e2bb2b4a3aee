"""Reads `quantization_config` of a config.json. Refuses keys that must not be ignored."""

from collections.abc import Callable, Mapping
from typing import Any

from snapexport.errors import UserError
from snapexport.exporter.weights.readers.awq import Awq
from snapexport.exporter.weights.readers.bitsandbytes import BitsAndBytes
from snapexport.exporter.weights.readers.compressed_tensors import CompressedTensors
from snapexport.exporter.weights.readers.fp8 import Fbgemm, Fp8
from snapexport.exporter.weights.readers.gptq import Gptq, read_auto_round
from snapexport.exporter.weights.readers.grouped import contradictions
from snapexport.exporter.weights.readers.mlx import Mlx
from snapexport.exporter.weights.readers.modelopt import ModelOpt
from snapexport.exporter.weights.readers.mxfp4 import Mxfp4
from snapexport.exporter.weights.readers.quantization import KEY, ORIGINAL, Quantization, history
from snapexport.exporter.weights.readers.suffixes import format_of
from snapexport.exporter.weights.readers.torchao import TorchAo

__all__ = ["contradictions", "format_of", "history", "read_quantization"]

METHODS: Mapping[str, Callable[[dict[str, Any]], Quantization]] = {
    "auto-round": read_auto_round,
    "awq": Awq.of,
    "bitsandbytes": BitsAndBytes.of,
    "compressed-tensors": CompressedTensors.of,
    "fbgemm_fp8": Fbgemm.of,
    "fp8": Fp8.of,
    "gptq": Gptq.of,
    "intel/auto-round": read_auto_round,
    "mlx": Mlx.of,
    "modelopt": ModelOpt.of,
    "modelopt_fp4": ModelOpt.of,
    "mxfp4": Mxfp4.of,
    "torchao": TorchAo.of,
}
"""Readers of the other keys, by `quant_method`."""


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """The quantization of a config.json; None without one. Raises UserError for unknown kinds."""
    if (given := config.get(KEY)) is None:
        return None
    kind = given.get("quant_method") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str) or kind not in METHODS:
        raise UserError(
            f"the checkpoint is quantized by the method {kind!r:.100}: only fp32, fp16 and bf16 "
            f"weights are read, and the methods {', '.join(METHODS)}",
            ORIGINAL,
        )
    return METHODS[kind]({name: value for name, value in given.items() if name != "quant_method"})
