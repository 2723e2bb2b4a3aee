"""The architectures that are verified against transformers, and why others are refused."""

from typing import TYPE_CHECKING, Any

from snapexport.contract.errors import UserError, first_line
from snapexport.contract.manifest import ModelFacts
from snapexport.exporter.checkpoint import GENERATION_CONFIG, Checkpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VERIFIED = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architecture and its config's model_type. Checked by the tests: logits, greedy tokens and kept
positions agree with transformers'."""

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""RoPE variants whose frequencies don't depend on how long the sequence has become."""


def require_verified(checkpoint: Checkpoint) -> str:
    """Architecture of the checkpoint, or UserError with the list of those that work."""
    config = checkpoint.config
    named = config.get("architectures") or ["(none named in config.json)"]
    if named[0] not in VERIFIED or config.get("model_type") != VERIFIED[named[0]]:
        raise UserError(
            f"the architecture {named[0]} of a model_type '{config.get('model_type')}' "
            "is not supported",
            f"these are verified: {', '.join(VERIFIED)}",
        )
    if "quantization_config" in config:
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
        raise UserError(
            f"transformers refuses config.json: {first_line(error)}", "mend config.json"
        ) from None
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
    # Mistral's every layer slides where a window is set; Qwen2's config says which layers do.
    if kinds != {"full_attention"} or (window and config.model_type == "mistral"):
        raise UserError(
            f"the checkpoint uses sliding-window attention (window {window})",
            "only full attention is supported so far: take a version of the model without it",
        )


def model_facts(
    architecture: str, config: "PretrainedConfig", checkpoint: Checkpoint
) -> ModelFacts:
    """What the manifest says of the model. Raises UserError."""
    heads = config.num_attention_heads
    return ModelFacts(
        architecture=architecture,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        max_position_embeddings=_position_limit(config),
        eos_token_id=_end_tokens(
            checkpoint.generation_config.get("eos_token_id", config.eos_token_id)
        ),
    )


def _position_limit(config: "PretrainedConfig") -> int:
    """The longest sequence the model is made for: YaRN stretches what it was trained on."""
    rope: dict[str, Any] = config.rope_parameters or {}
    limit = int(config.max_position_embeddings)
    if rope.get("rope_type") != "yarn":
        return limit
    trained = rope.get("original_max_position_embeddings") or limit
    return max(limit, int(rope["factor"] * trained))


def _end_tokens(eos: object) -> list[int]:
    """One id, several or none, as the configs have them."""
    tokens = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(isinstance(token, int) for token in tokens):
        raise UserError(
            f"eos_token_id {eos!r} is neither a token id nor a list of them",
            f"mend config.json or {GENERATION_CONFIG}",
        )
    return list(tokens)
