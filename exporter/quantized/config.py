"""Reads `quantization_config` of a config.json. Refuses what would change the weights unread."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from snapexport.errors import UserError

Kind = Literal["mxfp4", "fp8"]
KINDS: tuple[Kind, ...] = get_args(Kind)
KEY = "quantization_config"
_ORIGINAL = "start from the original checkpoint"
_LARGEST_BLOCK = 1 << 14

_NAMES = ("modules_to_not_convert", "ignored_layers")
"""Lists of modules that are not quantized. Their tensors show it by their types."""
_VALUES: Mapping[Kind, Mapping[str, tuple[object, ...]]] = {
    "mxfp4": {"dequantize": (True, False)},
    "fp8": {
        "dequantize": (True, False),
        "activation_scheme": ("dynamic",),
        "fmt": ("e4m3",),
        "scale_fmt": ("float", "ue8m0"),
        "expert_dtype": ("fp8",),
        "modules_to_convert": (None,),
    },
}
"""The values of further keys that don't change how weights are dequantized."""


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint's weights are quantized. block: rows and columns that share an fp8 scale."""

    kind: Kind
    block: tuple[int, int] = (128, 128)


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """The quantization of a config.json; None without one. Raises UserError for unknown kinds."""
    if (given := config.get(KEY)) is None:
        return None
    kind = given.get("quant_method") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in KINDS:
        raise UserError(
            f"the checkpoint is quantized by the method {kind!r:.100}: only fp32, fp16 and bf16 "
            f"weights are read, and the methods {' and '.join(KINDS)}",
            _ORIGINAL,
        )
    others = {name: value for name, value in given.items() if name != "quant_method"}
    for name in _NAMES:
        _require_names(name, others.pop(name, None))
    block = _block(others.pop("weight_block_size", [128, 128])) if kind == "fp8" else (128, 128)
    for name, value in others.items():
        _require_value(kind, name, value)
    return Quantization(kind, block)


def _require_names(name: str, value: object) -> None:
    if value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return
    raise UserError(f"{KEY}: {name} is no list of names", "correct config.json")


def _block(value: object) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value):
        rows, columns = value
        if 1 <= rows <= _LARGEST_BLOCK and 1 <= columns <= _LARGEST_BLOCK:
            return rows, columns
    raise UserError(
        f"{KEY}: weight_block_size is {value!r:.100}, not two numbers from 1 to {_LARGEST_BLOCK}: "
        "fp8 weights are read with a scale for each block",
        _ORIGINAL,
    )


def _require_value(kind: Kind, name: str, value: object) -> None:
    known = _VALUES[kind]
    if name not in known:
        raise UserError(f"{KEY} of the method {kind} has the unknown key {name!r:.100}", _ORIGINAL)
    if not any(type(value) is type(one) and value == one for one in known[name]):
        raise UserError(
            f"{KEY}: {name} {value!r:.100} is not supported",
            f"{_ORIGINAL}; {name} may be {' or '.join(map(repr, known[name]))}",
        )
