"""AutoRound's own format: the parts are those of GPTQ, in either version, or of AWQ."""

from typing import Any

from snapexport.errors import UserError
from snapexport.exporter.quantized.awq import Awq
from snapexport.exporter.quantized.gptq import Gptq
from snapexport.exporter.quantized.quantization import (
    KEY,
    Quantization,
    require_names,
    require_value,
    require_values,
)

_AWQ = "auto_round:auto_awq"
_VERSIONS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round": "gptq_v2",
}
_VALUES: dict[str, tuple[object, ...]] = {
    "data_type": ("int", None),
    "act_bits": (16, 32, None),
    "super_bits": (None,),
    "super_group_size": (None,),
    "static_attention_dtype": (None,),
    "static_kv_dtype": (None,),
    "rotation_configs": (None, [], {}),
}
_NEUTRAL = (
    *("act_data_type", "act_group_size", "act_sym", "act_dynamic", "amp", "batch_size", "dataset"),
    *("enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input", "backend"),
    *("gradient_accumulate_steps", "iters", "lr", "low_gpu_mem_usage", "minmax_lr", "nsamples"),
    *("quant_block_list", "scale_dtype", "seqlen", "supported_types", "to_quant_block_names"),
    *("static_attention_granularity", "static_kv_granularity", "autoround_version", "provider"),
    *("block_name_to_quantize", "sym"),
)
"""Keys about how the weights were rounded, or that the tensors tell."""
_OF_WEIGHTS = ("bits", "group_size")
_FEWEST_WHOLE = 16


def read_auto_round(given: dict[str, Any]) -> Quantization:
    """Of quantization_config without its method. Raises UserError."""
    packing = given.pop("packing_format", "auto_round:auto_gptq")
    require_value("packing_format", packing, (*_VERSIONS, _AWQ))
    require_names("modules_to_not_convert", given.pop("modules_to_not_convert", None))
    layers = given.pop("extra_config", None) or {}
    if not isinstance(layers, dict) or not all(isinstance(one, dict) for one in layers.values()):
        raise UserError(f"{KEY}: extra_config is no table of layers", "correct config.json")
    weights = {name: given.pop(name) for name in _OF_WEIGHTS if name in given}
    for keys in (given, *(one for one in layers.values() if not _is_whole(one))):
        rest = {name: value for name, value in keys.items() if name not in _OF_WEIGHTS}
        require_values("auto-round", rest, _VALUES, _NEUTRAL)
    if packing == _AWQ:
        return Awq.of(weights)
    dynamic: dict[str, Any] = {name: {} for name in layers}
    return Gptq.of(weights | {"checkpoint_format": _VERSIONS[packing], "dynamic": dynamic})


def _is_whole(layer: dict[str, Any]) -> bool:
    """Whether a layer was left as it was, in floats."""
    bits = layer.get("bits")
    return isinstance(bits, int) and bits >= _FEWEST_WHOLE
