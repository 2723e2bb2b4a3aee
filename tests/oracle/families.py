"""Tiny configs of further decoders of transformers, each in a form that tells its parts apart.

A model type with several forms has a name with a dash for each.
"""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from .checkpoints import MAX_POSITIONS, WINDOW

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0}
_YARN |= {"original_max_position_embeddings": 128}

_COMMON: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "rope_parameters": _ROPE,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_MIXED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
}


def _partly(share: float) -> dict[str, Any]:
    return {"rope_parameters": _ROPE | {"partial_rotary_factor": share}}


_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_MULTIPLIED: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.8,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.2,
}
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "q_lora_rank": 24,
    "num_key_value_heads": 4,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {"head_dim": 16},
    "bitnet": {},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.25, "tie_word_embeddings": True},
    "cohere2": {"logit_scale": 0.25, "tie_word_embeddings": True, **_MIXED},
    "ernie4_5": {"head_dim": 16, "tie_word_embeddings": True},
    "ernie4_5_moe": {
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_layer_start_index": 1,
        "moe_num_shared_experts": 1,
    },
    "gemma": {"head_dim": 16, "tie_word_embeddings": True},
    "gemma4_text": {
        "head_dim": 16,
        "global_head_dim": 16,
        "num_global_key_value_heads": 2,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "sliding_attention", *2 * ["full_attention"]],
        "sliding_window": WINDOW,
        "rope_parameters": None,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 257,
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": False,
        "tie_word_embeddings": True,
    },
    "gemma4_text-shared": {
        "head_dim": 16,
        "global_head_dim": 32,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "sliding_window": WINDOW,
        "rope_parameters": None,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 257,
        "attention_k_eq_v": False,
        "tie_word_embeddings": True,
    },
    "glm": {"head_dim": 16, **_partly(0.5)},
    "glm4": {"head_dim": 16, **_partly(0.5)},
    "glm4_moe": {
        "head_dim": 16,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "use_qk_norm": True,
        **_partly(0.5),
        **_ROUTED,
    },
    "glm4_moe_lite": {"n_group": 1, "topk_group": 1, **_LATENT, **_ROUTED},
    "gpt2": {"n_positions": MAX_POSITIONS, "n_embd": 64, "n_layer": 3, "n_head": 4},
    "gpt_neox": _partly(0.25),
    "granite": _MULTIPLIED,
    "granitemoe": _MULTIPLIED | _LOCAL,
    "granitemoehybrid": {
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "layer_types": ["full_attention"] * 3,
        "shared_intermediate_size": 96,
        "logits_scaling": 2.0,
        "embedding_multiplier": 3.0,
    },
    # Without RoPE, which is complex in transformers.
    "llama4_text-nope": {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "layer_types": ["chunked_attention", "full_attention"] * 2,
        "attention_chunk_size": 16,
        "no_rope_layers": [0] * 4,
        "moe_layers": [],
        "intermediate_size_mlp": 112,
    },
    "mimo_v2_flash": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 24,
        "swa_v_head_dim": 16,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "sliding_window": WINDOW,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": dict.fromkeys(
            ("full_attention", "sliding_attention"), _partly(0.5)["rope_parameters"]
        ),
        **_ROUTED,
    },
    "ministral": {"head_dim": 16, **_MIXED},
    "ministral3": {
        "head_dim": 16,
        "sliding_window": None,
        "rope_parameters": _YARN | {"llama_4_scaling_beta": 0.1},
    },
    "mixtral": {"sliding_window": None, **_LOCAL},
    "nanochat": {"final_logit_softcapping": 15.0},
    "nemotron": {"head_dim": 16, **_partly(0.5)},
    "olmo2": {},
    "olmo3": {
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _YARN},
        **_MIXED,
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "opt": {
        "ffn_dim": 112,
        "word_embed_proj_dim": 64,
        "do_layer_norm_before": True,
        "tie_word_embeddings": True,
    },
    "phi": _partly(0.5),
    "phi3": {"sliding_window": None},
    "phi3-partial": {"sliding_window": None, "tie_word_embeddings": True, **_partly(0.75)},
    "qwen2_moe": {"shared_expert_intermediate_size": 48, **_EXPERTS},
    "seed_oss": {"head_dim": 16, "attention_bias": True},
    "smollm3": {
        "num_hidden_layers": 5,
        "no_rope_layers": [1, 1, 1, 0, 1],
        "tie_word_embeddings": True,
    },
    "stablelm": {"qk_layernorm": True, **_partly(0.25)},
    "starcoder2": {"sliding_window": WINDOW, "use_bias": True},
}


def config_of(name: str, **changes: Any) -> PretrainedConfig:
    """The tiny config of a name: a model type, with or without a form."""
    kind = name.partition("-")[0]
    given = _COMMON | FAMILIES.get(name, {}) | changes
    return AutoConfig.for_model(
        kind, **{k: v for k, v in given.items() if v is not None or k not in _COMMON}
    )
