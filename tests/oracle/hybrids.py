"""Tiny configs of decoders of transformers whose layers hold recurrent states, all or some."""

from typing import Any

from .checkpoints import WINDOW

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MULTIPLIED: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.8,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.2,
}
_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "rope_parameters": _ROPE | {"partial_rotary_factor": 0.5},
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
_NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": 6,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 12,
    "n_groups": 2,
    "head_dim": 16,
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {
        "num_hidden_layers": 4,
        "layer_group_size": 2,
        "head_dim": 16,
        "first_k_dense_replace": 1,
        "num_local_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "q_lora_rank": 24,
        **_LATENT,
    },
    "bamba": {"attn_layer_indices": [1], **_MAMBA},
    "falcon_h1": {"mamba_d_ssm": 128, "ssm_multipliers": [0.5, 1.5, 0.8, 1.2, 0.7], **_MAMBA},
    "granitemoehybrid.states": {
        "layer_types": ["mamba", "attention", "mamba"],
        "shared_intermediate_size": 48,
        **_MULTIPLIED,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        **_MAMBA,
    },
    "kimi_linear": {
        "num_hidden_layers": 4,
        "layer_types": [*3 * ["linear_attention"], "full_attention"],
        "linear_num_heads": 4,
        "linear_head_dim": 16,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        **_LATENT,
        "rope_parameters": None,
    },
    "lara_mini": _DELTA
    | _EXPERTS
    | {
        "layer_types": [
            "linear_attention",
            "sliding_attention",
            "linear_attention",
            "full_attention",
        ],
        "sliding_window": WINDOW,
        "shared_expert_intermediate_size": 32,
        "rope_parameters": _ROPE,
    },
    "lfm2.states": {
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
        "conv_bias": True,
    },
    "lfm2_moe.states": {
        "layer_types": ["conv", "conv", "full_attention"],
        "num_dense_layers": 1,
        **_EXPERTS,
    },
    "lfm3": {
        "head_dim": 16,
        "layer_types": ["conv", "sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "rope_parameters": None,
    },
    "nemotron_h": _NEMOTRON | {"hybrid_override_pattern": "M-*-M*"},
    "nemotron_h.experts": _NEMOTRON
    | {
        "hybrid_override_pattern": "MEM*E*",
        "n_routed_experts": 8,
        "n_group": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "moe_latent_size": 32,
        "routed_scaling_factor": 2.5,
    },
    "olmo_hybrid": _DELTA | {"linear_num_key_heads": 4, "rope_parameters": _ROPE},
    "qwen3_5_moe_text": _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_5_text": _DELTA,
    "qwen3_5_text.narrow": _DELTA
    | {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [1, 1, 0],
        },
    },
    "qwen3_next": _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 32},
}
