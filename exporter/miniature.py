"""Shrinks a config to a model that takes milliseconds, and has every layer of the original.

Sizes are found by their names in transformers' configs. What isn't known stays as it is.
"""

import copy
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_HEADS, _HEAD_DIM, _WIDTH, _RANK = 4, 16, 32, 24
_EXPERTS, _CHOSEN, _GROUPS, _CHOSEN_GROUPS = 16, 4, 4, 2
_VOCABULARY = 257

_ATTENTION_HEADS = re.compile(r"(\w+_)?(num_attention_heads|n_heads?|num_heads)(_per_layer)?")
_KV_HEADS = re.compile(r"(\w+_)?num_(\w+_)?key_value_heads(_per_layer)?|num_kv_heads")
_ROPE_DIM = ("qk_rope_head_dim", "rotary_dim")
_SECTIONS, _PAIRS = "mrope_section", 4

_SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size(_per_layer_input)?", _VOCABULARY),
    (r"hidden_size|n_embd|d_model|word_embed_proj_dim", _HEADS * _HEAD_DIM),
    (r"(\w+_)?(intermediate_size|ffn_hidden_size)(_mlp)?|ffn_dim|d_ff|dff|n_inner", _WIDTH),
    (r"(\w+_)?lora_rank", _RANK),
    (r"qk_rope_head_dim", _HEAD_DIM // 2),
    (r"(\w+_)?head_dim|kv_channels", _HEAD_DIM),
    (r"hidden_size_per_layer_input|laurel_rank", _HEAD_DIM),
    (r"(moe_)?num_(local_)?experts|n_routed_experts", _EXPERTS),
    (r"num_experts_per_tok|(moe_)?top_?k(_experts)?|moe_k", _CHOSEN),
    (r"n_group", _GROUPS),
    (r"floor_scale", _HEAD_DIM),
    (r"topk_group", _CHOSEN_GROUPS),
)
"""Names of sizes, and the most that a small model has of each."""


def miniature(config: "PretrainedConfig") -> "PretrainedConfig":
    """A small model's config. All its layers are there, in their kinds."""
    small = copy.deepcopy(config)
    for name, value in vars(config).items():
        if shrunk := _shrinking(name, config):
            setattr(small, name, _each(value, shrunk))
        elif name.endswith("_token_id"):
            setattr(small, name, None if value is None else 0)
    if (rope := _rope(small)).get(_SECTIONS):
        width = getattr(small, "head_dim", None) or small.hidden_size // _queries(small)
        pairs = int(width * _turned(config)) // 2
        rope[_SECTIONS] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return small


def _rope(config: Any) -> dict[str, Any]:
    """The parameters of RoPE, if all layers have the same."""
    found = getattr(config, "rope_parameters", None)
    return found if isinstance(found, dict) else {}


def _turned(config: Any) -> float:
    """The share of a head that RoPE turns."""
    return float(_rope(config).get("partial_rotary_factor", 1.0))


def _each(value: Any, shrunk: Callable[[int], int]) -> Any:
    """A size, or one for each layer."""
    if isinstance(value, list):
        return [_each(one, shrunk) for one in value]
    return shrunk(value) if type(value) is int else value


def _shrinking(name: str, config: Any) -> Callable[[int], int] | None:
    """Makes a field's numbers small."""
    if _ATTENTION_HEADS.fullmatch(name):
        return lambda heads: min(heads, _HEADS)
    if _KV_HEADS.fullmatch(name):
        return lambda kv_heads: _kv_heads(kv_heads, _queries(config))
    if name == "rotary_dim":
        whole = getattr(config, "head_dim", None) or config.hidden_size // _queries(config)
        return lambda rotated: max(2, rotated * _HEAD_DIM // whole)
    if name == "head_dim" and _turned(config) < 1:  # pairs for time, height and width
        return lambda size: min(size, max(_HEAD_DIM, int(2 * _PAIRS / _turned(config))))
    for pattern, most in _SIZES:
        if re.fullmatch(pattern, name):
            return lambda size: min(size, most)
    return None


def _queries(config: Any) -> int:
    return int(config.num_attention_heads)


def _kv_heads(kv_heads: int, heads: int) -> int:
    """As many as queries, or some of them, or one: as before."""
    if kv_heads >= heads or heads <= _HEADS:
        return min(kv_heads, _HEADS)
    return min(kv_heads, _HEADS // 2)
