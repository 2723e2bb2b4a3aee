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
    if model_type in known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise UserError("the model is an encoder with a decoder", _HINT)
    raise unsupported(named, model_type, "transformers has no such decoder")


def unsupported(name: str, model_type: str, why: str) -> UserError:
    """The error of an architecture that can't be built."""
    return UserError(
        f"the architecture {name:.100} of a model_type '{model_type:.100}' is not supported: {why}",
        _HINT,
    )
