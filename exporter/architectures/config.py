"""Checks a checkpoint's config against the record of its architecture, and reads the model's facts.

Refuses what is not verified and what a static graph cannot express. Names no architecture.
"""

from typing import TYPE_CHECKING, Any

from snapexport.contract.model_facts import ModelFacts
from snapexport.errors import UserError
from snapexport.exporter.architectures.fields import (
    CORRECT,
    POSITIONS,
    number_of_experts,
    require_activation,
    require_experts,
    require_groups,
    require_heads,
    require_ranges,
    require_rope,
)
from snapexport.exporter.architectures.registry import VERIFIED, architecture_of
from snapexport.exporter.checkpoint import GENERATION_CONFIG, Checkpoint
from snapexport.exporter.quantized import read_quantization

if TYPE_CHECKING:
    from transformers import PretrainedConfig

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""RoPE variants whose frequencies don't depend on how long the sequence has become."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""transformers' names of layer types."""


def require_verified(checkpoint: Checkpoint) -> str:
    """The class that the checkpoint names. Raises UserError, with the verified ones, for others."""
    config = checkpoint.config
    listed = config.get("architectures") or ["(none named in config.json)"]
    named = listed[0] if isinstance(listed, list) else listed
    known = VERIFIED.get(named) if isinstance(named, str) else None
    if known is None or config.get("model_type") != known.model_type:
        raise UserError(
            f"the architecture {named!s:.100} of a model_type '{config.get('model_type')!s:.100}' "
            "is not supported",
            f"these are verified: {', '.join(VERIFIED)}",
        )
    quantization = read_quantization(config)
    if quantization and quantization.kind not in known.quantized:
        raise UserError(
            f"the checkpoint is quantized by the method {quantization.kind}, which is not "
            f"supported with the architecture {known.name}",
            "start from the original checkpoint",
        )
    require_ranges(config)
    return known.name


def load_config(checkpoint: Checkpoint) -> "PretrainedConfig":
    """transformers' config, checked for what a static graph can't express. Runs no foreign code."""
    from transformers import AutoConfig

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            checkpoint.directory, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever its validators raise
        raise UserError(
            f"transformers refuses config.json: {' '.join(str(error).split())!s:.300}",
            "correct config.json",
        ) from None
    _require_verified_type(config)
    require_ranges(vars(config))
    require_heads(config)
    require_activation(config)
    if experts := architecture_of(config).experts:
        require_experts(config)
        require_groups(config, experts.grouped)
    _require_causal(config)
    _require_known_layers(config)
    _require_static_rope(config)
    return config


def _require_verified_type(config: "PretrainedConfig") -> None:
    """Check the model_type that transformers chose: it may differ from the file's."""
    verified = [record.model_type for record in VERIFIED.values()]
    if config.model_type not in verified:
        raise UserError(
            f"transformers reads config.json as model_type '{config.model_type}', "
            "which is not supported",
            f"these are verified: {', '.join(verified)}",
        )


def _require_causal(config: "PretrainedConfig") -> None:
    if getattr(config, "use_bidirectional_attention", False):
        raise UserError(
            "the checkpoint attends in both directions (use_bidirectional_attention)",
            "use a causal model: only those can be decoded token by token",
        )


def _require_known_layers(config: "PretrainedConfig") -> None:
    slides = architecture_of(config).slides != "never"
    known = (FULL, SLIDING) if slides else (FULL,)
    others = sorted(set(layer_types(config)) - set(known))
    if others:
        raise UserError(
            f"layers of type '{others[0]}' are not supported in a model_type '{config.model_type}'",
            f"these are: {', '.join(known)}",
        )
    window = getattr(config, "sliding_window", None)
    if SLIDING in layer_types(config) and (window is None or window < 1):
        raise UserError(
            f"layers are of type '{SLIDING}', but sliding_window is {window}", "correct config.json"
        )


def layer_types(config: "PretrainedConfig") -> list[str]:
    """Each layer's type, from `layer_types`; without that key all layers have the same type."""
    throughout = architecture_of(config).slides == "throughout"
    usual = SLIDING if throughout and config.sliding_window is not None else FULL
    return getattr(config, "layer_types", None) or [usual] * config.num_hidden_layers


def sliding_windows(config: "PretrainedConfig") -> list[int]:
    """Each layer's window in positions, the row's own included; 0: no window."""
    windows = {FULL: 0, SLIDING: window_of(config, getattr(config, "sliding_window", None))}
    return [windows[kind] for kind in layer_types(config)]


def window_of(config: "PretrainedConfig", window: int | None) -> int:
    """transformers' window of a layer; 0 if the model's longest sequence fits into it."""
    return 0 if window is None or window >= _position_limit(config) else window


def _require_static_rope(config: "PretrainedConfig") -> None:
    for rope in _ropes(config):
        if any(isinstance(value, dict) for value in rope.values()):
            raise UserError(
                f"config.json gives a RoPE for each type of layer; a model_type "
                f"'{config.model_type}' has only one",
                "correct rope_parameters in config.json",
            )
        rope_type = rope.get("rope_type", "default")
        if rope_type not in STATIC_ROPE:
            raise UserError(
                f"RoPE of type '{rope_type}' changes its frequencies with the sequence's length: "
                "keys in the cache would become invalid",
                f"these types work: {', '.join(STATIC_ROPE)}",
            )
        require_rope(rope)


def _ropes(config: "PretrainedConfig") -> list[dict[str, Any]]:
    """The model's RoPE, or one for each of its layer types."""
    rope: dict[str, Any] = config.rope_parameters or {}
    if not architecture_of(config).rope_per_layer_type:
        return [rope]
    return [rope[kind] for kind in sorted(set(layer_types(config)))]


def model_facts(
    architecture: str, config: "PretrainedConfig", checkpoint: Checkpoint
) -> ModelFacts:
    """The manifest's facts of the model. Raises UserError."""
    eos = checkpoint.generation_config.get("eos_token_id", config.eos_token_id)
    return ModelFacts(
        architecture=architecture,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        **_cached_heads(config),
        vocab_size=config.vocab_size,
        max_position_embeddings=_position_limit(config),
        sliding_window=sliding_windows(config),
        attention_sinks=architecture_of(config).attention_sinks,
        num_experts=number_of_experts(config) or 0 if architecture_of(config).experts else 0,
        eos_token_id=_end_tokens(eos, config.vocab_size),
    )


def _cached_heads(config: "PretrainedConfig") -> dict[str, Any]:
    """The facts of a cache's heads: of keys and values, or of latents."""
    if architecture_of(config).latent:
        rank = config.kv_lora_rank
        return {
            "num_key_value_heads": 1,
            "head_dim": rank + config.qk_rope_head_dim,
            "kv_lora_rank": rank,
            "qk_nope_head_dim": config.qk_nope_head_dim,
            "v_head_dim": config.v_head_dim,
        }
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    facts = {"num_key_value_heads": config.num_key_value_heads, "head_dim": width}
    return facts | dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 0)


def _position_limit(config: "PretrainedConfig") -> int:
    """The longest sequence of the model, in tokens."""
    limit = int(config.max_position_embeddings)
    longest = max(_stretched(limit, rope) for rope in _ropes(config))
    if longest > POSITIONS:
        raise UserError(
            f"config.json: its RoPE's factor makes {longest} positions, at most {POSITIONS} are "
            "possible",
            CORRECT,
        )
    return longest


def _stretched(limit: int, rope: dict[str, Any]) -> int:
    """The longest sequence with YaRN: factor * the length that the model was trained on."""
    if rope.get("rope_type") != "yarn":
        return limit
    trained = rope.get("original_max_position_embeddings") or limit
    return max(limit, int(rope["factor"] * trained))


def _end_tokens(eos: object, vocab_size: int) -> list[int]:
    """The end tokens of a config: one id, several or none."""
    tokens = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(token) is int and 0 <= token < vocab_size for token in tokens):
        raise UserError(
            f"eos_token_id {eos!r:.100} is neither a token id nor a list of them: the vocabulary "
            f"has {vocab_size} tokens",
            f"correct config.json or {GENERATION_CONFIG}",
        )
    return list(tokens)
