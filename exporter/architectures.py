"""The architectures that are verified against transformers, and why others are refused."""

from typing import TYPE_CHECKING, Any

from snapexport.contract.errors import UserError
from snapexport.contract.manifest import ModelFacts
from snapexport.exporter.checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VERIFIED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Checked by the tests: logits, greedy tokens and kept positions agree with transformers'."""

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""RoPE variants whose frequencies don't depend on how long the sequence has become."""


def require_verified(checkpoint: Checkpoint) -> str:
    """Architecture of the checkpoint, or UserError with the list of those that work."""
    named = checkpoint.config.get("architectures") or ["(none named in config.json)"]
    if named[0] not in VERIFIED:
        raise UserError(
            f"the architecture {named[0]} is not supported",
            f"these are verified: {', '.join(VERIFIED)}",
        )
    if "quantization_config" in checkpoint.config:
        raise UserError(
            "the checkpoint is quantized: only fp32, fp16 and bf16 weights are read",
            "start from the original checkpoint",
        )
    return str(named[0])


def load_config(checkpoint: Checkpoint) -> "PretrainedConfig":
    """transformers' config, checked for what a static graph can't express. Runs no foreign code."""
    from transformers import AutoConfig

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            checkpoint.directory, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever its validators raise
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"transformers refuses config.json: {reason}", "mend config.json") from None
    _require_static_rope(config)
    _require_full_attention(config)
    return config


def _require_static_rope(config: "PretrainedConfig") -> None:
    rope_type = (config.rope_parameters or {}).get("rope_type", "default")
    if rope_type not in STATIC_ROPE:
        raise UserError(
            f"RoPE of type '{rope_type}' changes its frequencies with the sequence's length: "
            "cached keys can't stay valid in a fixed-size cache",
            f"these types work: {', '.join(STATIC_ROPE)}",
        )


def _require_full_attention(config: "PretrainedConfig") -> None:
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or ((window or 0) and config.model_type == "mistral"):
        raise UserError(
            f"the checkpoint uses sliding-window attention (window {window})",
            "only full attention is supported so far: take a version of the model without it",
        )


def model_facts(
    architecture: str, config: "PretrainedConfig", generation: dict[str, Any]
) -> ModelFacts:
    """What the manifest says of the model. `generation` is generation_config.json, or empty."""
    heads = config.num_attention_heads
    eos = generation.get("eos_token_id", config.eos_token_id)
    return ModelFacts(
        architecture=architecture,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        eos_token_id=[] if eos is None else [eos] if isinstance(eos, int) else list(eos),
    )
