"""Facts of families that nobody sees by looking at their models: how checkpoints are published.

A family that is not here is built too, if its model can be (`exporter/probe/`). Each of these is
compared with transformers by tests: logits, greedy tokens and kept positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    only such families are read in. mtp: checkpoints may have a layer for multi-token
    prediction after the last one. gguf: None if GGUF files don't have it under a name of its own.
    """

    name: str
    model_type: str
    quantized: tuple[str, ...] = ()
    mtp: bool = False
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
    Family(name="DeepseekV3ForCausalLM", model_type="deepseek_v3", mtp=True),
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
    Family(
        name="Qwen3ForCausalLM",
        model_type="qwen3",
        gguf=InGguf(name="qwen3"),
    ),
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
