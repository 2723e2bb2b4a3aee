"""Ranges of the numbers in a config.json, so that nothing is sized by one that makes no sense.

The bounds are far above any model. Names no architecture.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from snapexport.errors import UserError

POSITIONS = (1 << 31) - 1
"""Positions are int64 in the graphs, and int32 in some of the backends' kernels."""
CORRECT = "correct config.json: compare it with the original checkpoint's"
STATIC_ROPE = ("default", "linear", "llama3", "yarn", "proportional")
"""RoPE variants whose frequencies don't depend on how long the sequence has become."""
DYNAMIC = "dynamic"
"""One whose frequencies do, in most models: the model is asked (`probe/operators.py`)."""
ROPES_THAT_WORK = f"these types work: {', '.join(STATIC_ROPE)}"
LONGROPE = "longrope"
"""Two sets of frequencies, for sequences up to the length of training and for longer ones."""


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int

    def holds(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True)
class Real:
    """A finite number above `above`, and at most `most`."""

    above: float
    most: float

    def holds(self, value: object) -> bool:
        known = type(value) in (int, float)
        return known and math.isfinite(value) and self.above < value <= self.most  # type: ignore[arg-type, operator]

    def __str__(self) -> str:
        return f"a number above {self.above:g}, and at most {self.most:g}"


Range = Whole | Real
FIELDS: Mapping[str, Range] = {
    "vocab_size": Whole(1, 1 << 24),
    "hidden_size": Whole(1, 1 << 20),
    "intermediate_size": Whole(1, 1 << 22),
    "num_hidden_layers": Whole(1, 1 << 12),
    "num_attention_heads": Whole(1, 1 << 14),
    "num_key_value_heads": Whole(1, 1 << 14),
    "head_dim": Whole(2, 1 << 14),
    "q_lora_rank": Whole(1, 1 << 14),
    "kv_lora_rank": Whole(1, 1 << 13),
    "qk_nope_head_dim": Whole(1, 1 << 13),
    "qk_rope_head_dim": Whole(2, 1 << 13),
    "v_head_dim": Whole(1, 1 << 14),
    "num_experts": Whole(0, 1 << 16),
    "num_local_experts": Whole(0, 1 << 16),
    "n_routed_experts": Whole(0, 1 << 16),
    "n_group": Whole(1, 1 << 16),
    "topk_group": Whole(1, 1 << 16),
    "num_experts_per_tok": Whole(0, 1 << 12),
    "moe_intermediate_size": Whole(1, 1 << 22),
    "decoder_sparse_step": Whole(1, 1 << 12),
    "first_k_dense_replace": Whole(0, 1 << 12),
    "max_position_embeddings": Whole(1, POSITIONS),
    "sliding_window": Whole(0, POSITIONS),
    "max_window_layers": Whole(0, 1 << 12),
    "pad_token_id": Whole(-1, 1 << 24),
    "rms_norm_eps": Real(0, 1),
    "rope_theta": Real(0, 1e30),
    "initializer_range": Real(-1e-9, 1e6),
    "query_pre_attn_scalar": Real(0, 1e9),
    "attn_logit_softcapping": Real(0, 1e9),
    "final_logit_softcapping": Real(0, 1e9),
}
"""Ranges by names in config.json. Null is for transformers to judge."""
PER_LAYER = ("intermediate_size",)
"""Fields that may be a list, with a number for each layer (Gemma 3n)."""
_FACTOR = Real(0, 1e6)
ROPE_FIELDS: Mapping[str, Range] = {
    "rope_theta": Real(0, 1e30),
    "partial_rotary_factor": Real(0, 1),
    "factor": _FACTOR,
    "low_freq_factor": _FACTOR,
    "high_freq_factor": _FACTOR,
    "attention_factor": _FACTOR,
    "beta_fast": _FACTOR,
    "beta_slow": _FACTOR,
    "mscale": _FACTOR,
    "mscale_all_dim": Real(-1e-9, 1e6),
    "original_max_position_embeddings": Whole(1, POSITIONS),
}
ROPE_NEEDS: Mapping[str, Iterable[str]] = {
    "default": ["rope_theta"],
    "linear": ["rope_theta", "factor"],
    "llama3": [
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ],
    "yarn": ["rope_theta", "factor"],
    "proportional": ["rope_theta"],
    LONGROPE: ["rope_theta", "long_factor", "short_factor", "original_max_position_embeddings"],
}
"""The fields that a type of RoPE can't do without."""


def require_ranges(fields: Mapping[str, Any], ranges: Mapping[str, Range] = FIELDS) -> None:
    """Raise UserError, with the field's name, for a value outside of its range."""
    for name, allowed in ranges.items():
        value = fields.get(name)
        values = value if isinstance(value, list) and name in PER_LAYER else [value]
        if any(found is not None and not allowed.holds(found) for found in values):
            raise UserError(f"config.json: {name} is {value!r:.100}, not {allowed}", CORRECT)


def require_rope(rope: Mapping[str, Any]) -> None:
    """Raise UserError for a RoPE whose frequencies could not be calculated."""
    require_ranges(rope, ROPE_FIELDS)
    kind = rope.get("rope_type", "default")
    for name in ROPE_NEEDS.get(kind, ()):
        if rope.get(name) is None:
            raise UserError(f"config.json: a RoPE of type '{kind}' has no {name}", CORRECT)
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if low is not None and high is not None and low >= high:
        raise UserError(
            f"config.json: low_freq_factor {low} is not below high_freq_factor {high}", CORRECT
        )


def longest_sequence(limit: int, ropes: Iterable[Mapping[str, Any]]) -> int:
    """The longest sequence in tokens. YaRN stretches the length that the model was trained on."""
    yarns = [rope for rope in ropes if "yarn" in (rope.get("rope_type"), rope.get("type"))]
    trained = (rope.get("original_max_position_embeddings") or limit for rope in yarns)
    stretched = (int(rope["factor"] * length) for rope, length in zip(yarns, trained, strict=True))
    return max([limit, *stretched])


def field_of(config: Any, name: str) -> Any:
    """A field of transformers' config; None if it has none, or another one for each layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # of configs whose layers differ: the model's constructor judges
        return None


def require_heads(config: Any) -> None:
    """Raise UserError for heads that cannot be divided as attention does."""
    heads = field_of(config, "num_attention_heads")
    kv_heads = field_of(config, "num_key_value_heads") or heads
    if type(heads) is not int or type(kv_heads) is not int:
        return  # the model's constructor judges
    if heads % kv_heads:
        raise UserError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads "
            f"{kv_heads}",
            CORRECT,
        )
    head_dim = field_of(config, "head_dim")
    if head_dim is None and config.hidden_size % heads:
        raise UserError(
            f"config.json: hidden_size {config.hidden_size} is not a multiple of "
            f"num_attention_heads {heads}, and there is no head_dim",
            CORRECT,
        )
    width = head_dim or config.hidden_size // heads
    if width % 2 and field_of(config, "rope_parameters"):
        raise UserError(f"config.json: head_dim {width} is odd: RoPE turns pairs", CORRECT)


def require_activation(config: Any) -> None:
    """Raise UserError for an activation that transformers doesn't have."""
    from transformers.activations import ACT2FN

    for name in ("hidden_act", "hidden_activation"):
        value = getattr(config, name, None)
        if value is not None and (not isinstance(value, str) or value not in ACT2FN):
            raise UserError(f"config.json: {name} {value!r:.100} is not known", CORRECT)


_NUMBERS_OF_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def require_experts(config: Any) -> None:
    """Raise UserError for numbers of experts (MoE) that no router can choose."""
    named = (getattr(config, name, None) for name in _NUMBERS_OF_EXPERTS)
    experts = next((number for number in named if number), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    if type(experts) is int and type(chosen) is int and chosen > experts:
        raise UserError(
            f"config.json: num_experts_per_tok {chosen} is more than the {experts} experts", CORRECT
        )
    listed = getattr(config, "mlp_only_layers", None) or []
    if not isinstance(listed, list) or any(type(layer) is not int for layer in listed):
        raise UserError(
            f"config.json: mlp_only_layers {listed!r:.100} is not a list of layers", CORRECT
        )


_GREEDY, _BY_GROUPS = "greedy", "group_limited_greedy"
"""DeepSeek-V2's names of its routers."""
_RANKED_BY = 2
"""Experts of a group whose scores rank it (DeepSeek-V3)."""


def require_groups(config: Any) -> None:
    """Raise UserError for groups of experts that a router cannot choose from."""
    method = getattr(config, "topk_method", None)
    if method is not None and method not in (_GREEDY, _BY_GROUPS, "noaux_tc"):
        raise UserError(
            f"config.json: topk_method is {method!r:.100}, neither {_GREEDY} nor {_BY_GROUPS}",
            CORRECT,
        )
    names = ("n_group", "topk_group", "n_routed_experts")
    groups, chosen, experts = (getattr(config, name, None) for name in names)
    if method == _GREEDY or not experts or not all(hasattr(config, name) for name in names):
        return
    if groups is None and chosen is None:
        return
    if groups is None or chosen is None or chosen > groups:
        raise UserError(f"config.json: topk_group {chosen} of n_group {groups} groups", CORRECT)
    size = experts // groups
    if experts % groups or size < _RANKED_BY:
        raise UserError(
            f"config.json: {experts} experts are not {groups} groups of {_RANKED_BY} or more",
            CORRECT,
        )
    if config.num_experts_per_tok > chosen * size:
        raise UserError(
            f"config.json: num_experts_per_tok {config.num_experts_per_tok} is more than "
            f"{chosen} groups of {size} experts",
            CORRECT,
        )
