"""Says whether transformers has a decoder of a config's model_type, before anything else is judged.

A model that nobody could build is refused for that, and not for a field or a file of its.
"""

from collections.abc import Mapping
from typing import Any

from snapexport.errors import UserError

_HINT = (
    "use a checkpoint of a causal language model; code that comes with a checkpoint is never run"
)


def require_known(config: Mapping[str, Any]) -> None:
    """Raise UserError for a config.json whose model_type has no decoder.

    What is no name at all is for `require_readable` to judge.
    """
    from transformers.models.auto import modeling_auto as known

    model_type, listed = config.get("model_type"), config.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else listed
    if not isinstance(model_type, str) or not isinstance(named, str):
        return
    decoders = (
        known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )
    if any(model_type in table for table in decoders):
        return
    part = _text_part(config)
    if part and part in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(
            f"the architecture {named:.100} of a model_type '{model_type:.100}' is not supported",
            f"its text part is a '{part}': save that part alone with transformers, as "
            f"{known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[part]}, and build it",
        )
    if model_type in known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise UserError("the model is an encoder with a decoder", _HINT)
    raise unsupported(named, model_type, "transformers has no such decoder")


def unsupported(name: str, model_type: str, why: str, hint: str = _HINT) -> UserError:
    """The error of an architecture that can't be built."""
    return UserError(
        f"the architecture {name:.100} of a model_type '{model_type:.100}' is not supported: {why}",
        hint,
    )


def read_as(name: str, model_type: str, other: str) -> UserError:
    """The error of a class's name in the place of the one that transformers has."""
    return unsupported(
        name,
        model_type,
        f"transformers reads it as {other}",
        f'if its weights are that model\'s, with a head, write "architectures": ["{other}"] into '
        "config.json; code that comes with a checkpoint is never run",
    )


def _text_part(config: Mapping[str, Any]) -> str | None:
    """The model_type of a config's text, which may be a part of a part."""
    for level in (config, *(value for value in config.values() if isinstance(value, dict))):
        part = level.get("text_config")
        if isinstance(part, dict) and isinstance(part.get("model_type"), str):
            return str(part["model_type"]).removesuffix("_text")
    return None
