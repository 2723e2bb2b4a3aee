"""Gives the numbers of a config.json the types that their fields have: 2304.0 becomes 2304.

transformers' classes say which fields are whole numbers; where there is no class, our tables do.
"""

from collections.abc import Callable, Mapping
from typing import Any

from snapexport.exporter.read.config_fields import FIELDS, ROPE_FIELDS, Whole

_QUANTIZATION = "quantization", "quantization_config"
_WHOLE = {name for name, one in (*FIELDS.items(), *ROPE_FIELDS.items()) if isinstance(one, Whole)}
_WHOLE |= {"mrope_section", "bos_token_id", "eos_token_id"}
_TypeOf = Callable[[str], type | None]


def with_types(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A config with its numbers in their fields' types, and which became whole."""
    changed: list[str] = []
    return _convert(config, _class_of(config), changed), tuple(changed)


def _convert(
    fields: Mapping[str, Any], of: Any, changed: list[str], type_of: _TypeOf | None = None
) -> dict[str, Any]:
    """of: the fields' class in transformers; None: they have none."""
    known, made = type_of or _types(of), {}
    parts = getattr(of, "sub_configs", {})
    for name, value in fields.items():
        if isinstance(value, dict):
            all_whole = (lambda _: int) if name in _QUANTIZATION else None
            part = _class_of(value) or parts.get(name)
            made[name] = _convert(value, part, changed, all_whole or type_of)
            continue
        made[name] = _as(known(name), value)
        if known(name) is int and repr(made[name]) != repr(value):
            changed.append(f"{name} as {made[name]!r:.40}")
    return made


def _as(wanted: type | None, value: Any) -> Any:
    if isinstance(value, list):
        return [_as(wanted, one) for one in value]
    if wanted is int and type(value) is float and value.is_integer():
        return int(value)
    if wanted is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    return value


def _types(of: Any) -> _TypeOf:
    """The types of fields that hold numbers of one type; our tables' for other names."""
    names = getattr(of, "attribute_map", {})
    fields = getattr(of, "__dataclass_fields__", {})

    def type_of(name: str) -> type | None:
        if (field := fields.get(names.get(name, name))) is None:
            return int if name in _WHOLE else None
        said = getattr(field.type, "__name__", "") if isinstance(field.type, type) else field.type
        has = {one for one in (int, float) if one.__name__ in str(said)}
        return has.pop() if len(has) == 1 else None

    return type_of


def _class_of(config: Mapping[str, Any]) -> Any:
    """transformers' class of a config with a model_type; None for others."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    named = config.get("model_type")
    return CONFIG_MAPPING[named] if isinstance(named, str) and named in CONFIG_MAPPING else None
