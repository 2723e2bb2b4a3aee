"""Facts of families that a look at their models does not show: how checkpoints are published.

A family that is not here is built too, if its model can be (`exporter/model/probe/`). Each of these
is compared with transformers by tests: logits, greedy tokens and kept positions. A model that
transformers has no decoder of is refused for that, and not for one of its fields or files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from snapexport.errors import UserError


@dataclass(frozen=True, kw_only=True)
class InGguf:
    """How GGUF files have an architecture.

    name: in their metadata. spaced: whether a text gets a leading space, if a file doesn't say.
    only: {key of the metadata, without the name: the one value that is read}, for what transformers
    takes for given.
    """

    name: str
    spaced: bool = True
    only: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of decoders.

    name: the class in config.json. model_type: of transformers' config. quantized: methods that
    only such families are read in. gguf: None if GGUF files don't have it under a name of its own.
    """

    name: str
    model_type: str
    quantized: tuple[str, ...] = ()
    gguf: InGguf | None = None


PIECES, MERGED_PIECES = "llama", "gemma4"
"""llama.cpp's names of SentencePiece's tokenizers, by scores and by merges."""
_GEMMA3_ONLY = {
    # Files don't say how scores are scaled: for heads of 256 it is by 256 in all models.
    "attention.key_length": 256,
    "attention.sliding_window_pattern": 6,
    "rope.freq_base_swa": 10000.0,
}
_HELD = (
    Family(name="DeepseekV2ForCausalLM", model_type="deepseek_v2"),
    Family(name="DeepseekV3ForCausalLM", model_type="deepseek_v3"),
    Family(
        name="Gemma2ForCausalLM",
        model_type="gemma2",
        # Files don't say how scores are scaled: for heads of 256 it is by 256 in all models.
        gguf=InGguf(name="gemma2", spaced=False, only={"attention.key_length": 256}),
    ),
    Family(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        gguf=InGguf(name="gemma3", spaced=False, only=_GEMMA3_ONLY),
    ),
    Family(name="GptOssForCausalLM", model_type="gpt_oss", quantized=("mxfp4",)),
    Family(name="LlamaForCausalLM", model_type="llama", gguf=InGguf(name="llama")),
    # GGUF files call it Llama, without a window.
    Family(name="MistralForCausalLM", model_type="mistral"),
    Family(name="Qwen2ForCausalLM", model_type="qwen2", gguf=InGguf(name="qwen2")),
    Family(name="Qwen3ForCausalLM", model_type="qwen3", gguf=InGguf(name="qwen3")),
    Family(name="Qwen3MoeForCausalLM", model_type="qwen3_moe"),
)
HELD = {family.model_type: family for family in _HELD}
"""model_type -> the family. Tests hold these, so a build need not verify them by itself."""


def family_of(name: str, model_type: str) -> Family:
    """The family of a class in config.json; one without further facts if tests hold none."""
    held = HELD.get(model_type)
    return held if held and held.name == name else Family(name=name, model_type=model_type)


def is_held(family: Family) -> bool:
    """Whether tests of ours hold a family: with every option, and in all of its forms."""
    return HELD.get(family.model_type) == family


_HINT = (
    "use a checkpoint of a causal language model; code that comes with a checkpoint is never run"
)


def require_known(config: Mapping[str, Any]) -> None:
    """Raise UserError for a config.json whose model_type has no decoder.

    `require_readable` judges what isn't a name at all.
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
            f"its text part is a '{part}': save only that part with transformers, as "
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
