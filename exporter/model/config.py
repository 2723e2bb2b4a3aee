"""Checks a checkpoint's config, and makes the manifest's facts of its decoder.

Refuses what a static graph cannot express. Names no architecture.
"""

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from snapexport.contract.model_facts import ModelFacts
from snapexport.errors import UserError
from snapexport.exporter.model.decoder import Decoder
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.config_fields import (
    CORRECT,
    DYNAMIC,
    LONGROPE,
    POSITIONS,
    ROPES_THAT_WORK,
    STATIC_ROPE,
    longest_sequence,
    require_activation,
    require_experts,
    require_groups,
    require_heads,
    require_ranges,
    require_rope,
)
from snapexport.exporter.read.families import Family, family_of
from snapexport.exporter.read.folders import GENERATION_CONFIG
from snapexport.exporter.read.tokenizer import end_of_text
from snapexport.exporter.weights.readers import read_quantization

if TYPE_CHECKING:
    from transformers import PretrainedConfig

T = TypeVar("T")


def require_readable(checkpoint: Checkpoint) -> Family:
    """The family that the checkpoint names. Raises UserError for one that cannot be read."""
    config = checkpoint.config
    listed = config.get("architectures") or ["(none named in config.json)"]
    named = listed[0] if isinstance(listed, list) else listed
    model_type = config.get("model_type")
    if not isinstance(named, str) or not isinstance(model_type, str):
        raise UserError(
            f"config.json names the architecture {named!r:.100} of a model_type "
            f"{model_type!r:.100}",
            CORRECT,
        )
    family = family_of(named, model_type)
    quantization = read_quantization(config)
    published = quantization is None or quantization.kind in family.quantized
    if quantization and quantization.of_some_families and not published:
        raise UserError(
            f"the checkpoint is quantized by the method {quantization.kind}, which is not "
            f"supported with the architecture {named:.100}",
            "start from the original checkpoint",
        )
    require_ranges(config)
    return family


def require_expressible(config: "PretrainedConfig", tensors: int) -> None:
    """Raise UserError for a text config that a static graph cannot express.

    tensors: how many the checkpoint has; 0: not known.
    """
    require_ranges(vars(config))
    _require_depth(config, tensors)
    require_heads(config)
    require_activation(config)
    require_experts(config)
    require_groups(config)
    _require_causal(config)
    _require_static_rope(config)


def _require_depth(config: "PretrainedConfig", tensors: int) -> None:
    """Raise UserError for more layers than tensors, before a model of them is made."""
    layers: Any = getattr(config, "num_hidden_layers", None)
    if type(layers) is not int:
        raise UserError("config.json does not say how many layers there are", CORRECT)
    if tensors and layers > tensors:
        raise UserError(
            f"config.json wants {layers} layers, and the checkpoint has {tensors} tensors",
            "check config.json against the checkpoint",
        )


def _require_causal(config: "PretrainedConfig") -> None:
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise UserError(
            "the checkpoint attends in both directions (use_bidirectional_attention)",
            "use a causal model: only those can be decoded token by token",
        )
    layers = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if layers and "sliding_attention" in layers and (window is None or window < 1):
        raise UserError(
            f"layers are of type 'sliding_attention', but sliding_window is {window}", CORRECT
        )


def _require_static_rope(config: "PretrainedConfig") -> None:
    for rope in _ropes(config):
        rope_type = rope.get("rope_type", "default")
        if rope_type == LONGROPE and rope.get("long_factor") != rope.get("short_factor"):
            raise UserError(
                "RoPE of type 'longrope' changes its frequencies where a sequence outgrows "
                f"{rope.get('original_max_position_embeddings')} positions",
                "choose one of the two sets for all sequences, by --L-max: --longrope",
            )
        if rope_type not in (*STATIC_ROPE, LONGROPE, DYNAMIC):
            raise UserError(f"RoPE of type '{rope_type}' is not known", ROPES_THAT_WORK)
        require_rope(rope)


def fix_longrope(config: "PretrainedConfig", length: int) -> Literal["long", "short"]:
    """Make a config's RoPE that of sequences of one length, and say which set that is.

    Both sets of factors become the chosen one, so transformers' own model has it too. Raises
    UserError for a RoPE of another type.
    """
    ropes = [rope for rope in _ropes(config) if rope.get("rope_type") == LONGROPE]
    if not ropes:
        raise UserError(
            "--longrope is for models with a RoPE of type 'longrope', and this one has none",
            "leave it out",
        )
    for rope in ropes:
        require_rope(rope)
    (trained,) = {rope["original_max_position_embeddings"] for rope in ropes}
    chosen: Literal["long", "short"] = "long" if length > trained else "short"
    for rope in ropes:
        rope["long_factor"] = rope["short_factor"] = rope[f"{chosen}_factor"]
    return chosen


def _ropes(config: "PretrainedConfig") -> list[dict[str, Any]]:
    """The model's RoPE, or one for each of its layer types; none without RoPE."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if not rope:
        return []
    # A type of layers without RoPE has None.
    by_type = all(value is None or isinstance(value, dict) for value in rope.values())
    return [value for value in rope.values() if value] if by_type else [rope]


def model_facts(decoder: Decoder, checkpoint: Checkpoint) -> ModelFacts:
    """The manifest's facts of the model. Raises UserError."""
    config, layers = decoder.config, decoder.layers
    return ModelFacts(
        architecture=decoder.family.name,
        num_hidden_layers=len(layers),
        num_attention_heads=_column([layer.heads for layer in layers]),
        **_cached_heads(decoder),
        vocab_size=config.vocab_size,
        max_position_embeddings=position_limit(config),
        sliding_window=[layer.window for layer in layers],
        attention_sinks=_column([layer.sinks for layer in layers]),
        num_experts=decoder.experts.experts if decoder.experts else 0,
        attention_chunk_size=_each([layer.chunk for layer in layers]),
        longrope=decoder.longrope,
        eos_token_id=_end_tokens(_end(checkpoint, config), config.vocab_size),
    )


def _cached_heads(decoder: Decoder) -> dict[str, Any]:
    """The facts of a cache's heads: of keys and values, or of latents."""
    sizes, layers = decoder.config, decoder.layers
    sources = tuple(layer.cache_of for layer in layers)
    held = {
        "cache_of": None if sources == tuple(range(len(layers))) else sources,
        "states": _each([layer.states for layer in layers]),
    }
    if decoder.latent:
        rank: int = sizes.kv_lora_rank
        return held | {
            "num_key_value_heads": 1,
            "head_dim": rank + sizes.qk_rope_head_dim,
            "kv_lora_rank": rank,
            "qk_nope_head_dim": sizes.qk_nope_head_dim,
            "v_head_dim": sizes.v_head_dim,
        }
    keys = _column([layer.key_dim for layer in layers])
    values = _column([layer.value_dim for layer in layers])
    return held | {
        "num_key_value_heads": _column([layer.kv_heads for layer in layers]),
        "head_dim": keys,
        "value_head_dim": None if values == keys else values,
        **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 0),
    }


def _each(values: list[T]) -> tuple[T, ...] | None:
    """A value for each layer, if any has one."""
    return tuple(values) if any(values) else None


def _column(values: list[T]) -> T | tuple[T, ...]:
    """One value if all layers have the same, else one for each."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def position_limit(config: "PretrainedConfig") -> int:
    """The longest sequence of the model, in tokens. Raises UserError."""
    limit: Any = getattr(config, "max_position_embeddings", None)
    if type(limit) is not int:
        raise UserError(
            "config.json does not say how long a sequence may be (max_position_embeddings)", CORRECT
        )
    longest = longest_sequence(limit, _ropes(config))
    if longest > POSITIONS:
        raise UserError(
            f"config.json: its RoPE's factor makes {longest} positions, at most {POSITIONS} are "
            "possible",
            CORRECT,
        )
    return longest


def _end(checkpoint: Checkpoint, config: "PretrainedConfig") -> object:
    """The first that says what ends an answer: generation_config.json, the configs, the tokenizer.

    A vision-language model's config says so for its text too.
    """
    whole, text = checkpoint.config, checkpoint.config.get("text_config")
    asked = (checkpoint.generation_config, whole, text if isinstance(text, dict) else {})
    said = [one["eos_token_id"] for one in asked if one.get("eos_token_id") is not None]
    if said or (default := config.eos_token_id) is None:
        return said[0] if said else end_of_text(checkpoint.directory, config.vocab_size)
    return default


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
