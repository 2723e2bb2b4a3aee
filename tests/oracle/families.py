"""Tiny configs of further decoders of transformers, each in a form that tells its parts apart.

A model type with several forms has a name with a dot for each.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from .checkpoints import MAX_POSITIONS, WINDOW
from .hybrids import HYBRIDS

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
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
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

_MIXED_EXPERTS = {"mlp_layer_types": ["dense", *3 * ["sparse"]], **_EXPERTS, **_MIXED}
_TWO_ROPES = {"rope_parameters": {"sliding_attention": _ROPE, "full_attention": _YARN}}
_TOWER = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 20, "tie_word_embeddings": True, **_MIXED}

_GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", *2 * ["full_attention"]],
    "sliding_window": WINDOW,
    "rope_parameters": None,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "tie_word_embeddings": True,
}
_GPT: dict[str, Any] = {"n_positions": MAX_POSITIONS, "n_embd": 64, "n_layer": 3, "n_head": 4}
_SCALED = dict.fromkeys(("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), True)
_NTK = {"rope_type": "dynamic", "factor": 1.0, "alpha": 1000.0}
_ALPHA: dict[str, Any] = {"head_dim": 16, "rope_parameters": _ROPE | _NTK}
_PLAIN = ("arcee", "exaone", "helium", "hunyuan_v1_dense", "iquestcoder", "jais2")
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {"head_dim": 16} for name in _PLAIN},
    "afmoe": {
        "head_dim": 16,
        "mup_enabled": True,
        "route_scale": 1.5,
        "num_shared_experts": 1,
        **_EXPERTS,
        **_MIXED,
    },
    **{name: dict[str, Any]() for name in ("apertus", "apertus1p5_text", "bitnet", "olmo2")},
    "aria_text": {"moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 1},
    "axk1": {
        "n_group": 4,
        "topk_group": 2,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        **_LATENT,
        **_ROUTED,
    },
    "beam": {
        "head_dim": 16,
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": None},
        "n_group": 2,
        "topk_group": 1,
        **_MIXED_EXPERTS,
    },
    "bert": {"is_decoder": True},
    "bert-generation": {"is_decoder": True},
    "biogpt": {"num_key_value_heads": None, "tie_word_embeddings": True},
    "codegen": {"rotary_dim": 8, **_GPT},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.25, "tie_word_embeddings": True},
    "cohere2": {"logit_scale": 0.25, "tie_word_embeddings": True, **_MIXED},
    "cohere2_moe": {
        "head_dim": 16,
        "logit_scale": 0.25,
        "num_shared_experts": 1,
        "tie_word_embeddings": True,
        **_MIXED_EXPERTS,
    },
    "cohere_compass_text": {
        "logit_scale": 0.25,
        "head_dim": 16,
        "tie_word_embeddings": True,
        **_TWO_ROPES,
        **_MIXED,
    },
    "ctrl": {"n_positions": MAX_POSITIONS, "n_embd": 64, "dff": 112, "n_layer": 3, "n_head": 4},
    "cwm": {"head_dim": 16, **_MIXED},
    "dots1": {
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "head_dim": 16,
        **_ROUTED,
        **_MIXED,
    },
    "electra": {"is_decoder": True},
    "ernie": {"is_decoder": True},
    "ernie4_5": {"head_dim": 16, "tie_word_embeddings": True},
    "ernie4_5_moe": {
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_layer_start_index": 1,
        "moe_num_shared_experts": 1,
    },
    "exaone4": _MIXED,
    "exaone_moe": {"num_shared_experts": 1, **_MIXED_EXPERTS},
    "flex_olmo": {"num_experts": 8, "num_experts_per_tok": 2},
    "flint": {
        "head_dim": 16,
        "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [0],
        **_EXPERTS,
        **_MIXED,
    },
    "gemma": {"head_dim": 16, "tie_word_embeddings": True},
    "gemma3n_text": {
        **_GEMMA4,
        "intermediate_size": [112] * 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 257,
        "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0],
        "altup_num_inputs": 3,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        **_GEMMA4,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 257,
    },
    "gemma4_text.heads": {
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        **_GEMMA4,
    },
    "gemma4_text.experts": {**_GEMMA4, **_EXPERTS, "enable_moe_block": True, "top_k_experts": 2},
    "gemma4_unified_text": _GEMMA4,
    "gemma4_text.shared": {
        **_GEMMA4,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 257,
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
    "gpt-sw3": _GPT,
    "gpt2": _GPT,
    "gpt2.scaled": _SCALED | _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neox": _partly(0.25),
    "gptj": {"rotary_dim": 8, **_GPT},
    "granite": _MULTIPLIED,
    "granite_swa": _MULTIPLIED | _MIXED | {"layer_rope_theta": [10000.0, 500.0] * 2},
    "granitemoe": _MULTIPLIED | _LOCAL,
    "granitemoe_swa": _MULTIPLIED
    | _LOCAL
    | _MIXED
    | {"layer_rope_theta": [10000.0, 500.0] * 2, "shared_intermediate_size": 48},
    "granitemoehybrid": {
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "layer_types": ["full_attention"] * 3,
        "shared_intermediate_size": 96,
        "logits_scaling": 2.0,
        "embedding_multiplier": 3.0,
    },
    "granitemoehybrid.rope": {
        "position_embedding_type": "rope",
        "layer_types": ["full_attention"] * 3,
        "shared_intermediate_size": 48,
        **_MULTIPLIED,
        **_LOCAL,
    },
    "granitemoeshared": _MULTIPLIED | _LOCAL | {"shared_intermediate_size": 48},
    "hunyuan_v1_dense.alpha": _ALPHA,
    "hunyuan_v1_dense.dynamic": _ALPHA
    | {"rope_parameters": _ROPE | {"rope_type": "dynamic", "factor": 2.0}},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 8, "moe_topk": 2},
    "hunyuan_v1_moe.alpha": _ALPHA | {"num_experts": 8, "moe_topk": 2},
    "hy_v3": {
        "head_dim": 16,
        "num_shared_experts": 1,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        **_EXPERTS,
    },
    "hyperclovax": {"head_dim": 16, **_MULTIPLIED},
    "internlm3": {"head_dim": 16, "qkv_bias": True, "bias": True},
    "kolibri1": {
        "head_dim": 16,
        "shared_expert_intermediate_size": 48,
        "moe_intermediate_size": 32,
        **_LOCAL,
        **_MIXED,
    },
    "laguna": {
        "head_dim": 16,
        "rope_parameters": {
            "sliding_attention": _ROPE,
            "full_attention": _YARN | {"partial_rotary_factor": 0.5},
        },
        "shared_expert_intermediate_size": 48,
        "num_attention_heads_per_layer": [4] * 4,
        **_MIXED_EXPERTS,
    },
    "lfm2": {"layer_types": ["full_attention"] * 3, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["full_attention"] * 3, "num_dense_layers": 1, **_EXPERTS},
    "llama4_text": {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "attention_chunk_size": 16,
        "floor_scale": 16,
        "num_local_experts": 4,
        "intermediate_size": 48,
        "intermediate_size_mlp": 112,
        "interleave_moe_layer_step": 2,
    },
    "mellum": {"head_dim": 16, "num_local_experts": 8, **_TWO_ROPES, **_MIXED_EXPERTS},
    "mimo_v2_flash": {
        "head_dim": 24,
        "v_head_dim": 16,
        "swa_head_dim": 24,
        "swa_v_head_dim": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "num_key_value_heads": 1,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": {
            kind: _partly(0.5)["rope_parameters"]
            for kind in ("sliding_attention", "full_attention")
        },
        **_ROUTED,
        **_MIXED,
    },
    "minicpm3": {"scale_depth": 1.4, "dim_model_base": 32, **_LATENT},
    "minimax_m2": {"head_dim": 16, **_LOCAL, **_partly(0.5)},
    "minimax_m3_vl_text": {
        "head_dim": 16,
        "rotary_dim": 8,
        "dense_intermediate_size": 112,
        "intermediate_size": 32,
        "shared_intermediate_size": 48,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention"] * 3,
        "swiglu_limit": 1.5,
        **_LOCAL,
    },
    "ministral": {"head_dim": 16, **_MIXED},
    "ministral3": {
        "head_dim": 16,
        "sliding_window": None,
        "rope_parameters": _YARN | {"llama_4_scaling_beta": 0.1},
    },
    "mixtral": {"sliding_window": None, **_LOCAL},
    "modernbert-decoder": {
        "rope_parameters": {
            "sliding_attention": _ROPE,
            "full_attention": _ROPE | {"rope_theta": 500.0},
        },
        "local_attention": 2 * WINDOW,
        **_MIXED,
    },
    "moshi": {"head_dim": 16, "ffn_dim": 224, "sliding_window": WINDOW},
    "nanochat": {"final_logit_softcapping": 15.0},
    "nemotron": {"head_dim": 16, **_partly(0.5)},
    "olmo": {"clip_qkv": 0.8},
    "olmo3": {**_TWO_ROPES, **_MIXED},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "opt": {
        "ffn_dim": 112,
        "word_embed_proj_dim": 64,
        "do_layer_norm_before": True,
        "tie_word_embeddings": True,
    },
    "persimmon": {"qk_layernorm": True, **_partly(0.5)},
    "phi": _partly(0.5),
    "phi3": {"sliding_window": None},
    "phi3.partial": {"sliding_window": None, "tie_word_embeddings": True, **_partly(0.75)},
    "phi4_multimodal": {
        "sliding_window": None,
        "vision_config": _TOWER,
        "audio_config": {**_TOWER, "num_blocks": 2, "nemo_conv_channels": 32},
        **_partly(0.75),
    },
    "phimoe": {"sliding_window": None, "attention_bias": True, "lm_head_bias": True, **_LOCAL},
    "qwen2_moe": {"shared_expert_intermediate_size": 48, **_EXPERTS},
    "roc_bert": {"is_decoder": True, "shape_vocab_size": 24},
    "sarvam_mla": {"first_k_dense_replace": 1, "n_shared_experts": 1, **_LATENT, **_ROUTED},
    "sarvam_moe": {
        "head_dim": 16,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "use_qk_norm": True,
        **_ROUTED,
    },
    "seed_oss": {"head_dim": 16, "attention_bias": True},
    "smollm3": {
        "num_hidden_layers": 5,
        "no_rope_layers": [1, 1, 1, 0, 1],
        "tie_word_embeddings": True,
    },
    "solar_open": {"head_dim": 16, "n_shared_experts": 1, **_ROUTED},
    "stablelm": {"qk_layernorm": True, **_partly(0.25)},
    "starcoder2": {"sliding_window": WINDOW, "use_bias": True},
    "vaultgemma": _GEMMA,
    "youtu": {"pad_token_id": None, "tie_word_embeddings": True, **_LATENT},
}


FEW = ("smollm3",)
SLOW = ("gemma4_text.shared", "granite_swa", "llama4_text", "mimo_v2_flash")
"""Layers without RoPE. Slow: shared caches, factors, chunks, sinks."""


def few_by_default(names: Iterable[str]) -> list[Any]:
    """Parameters of a test: all but FEW are slow, or for `make architectures`."""
    marks = {**dict.fromkeys(FEW, ()), **dict.fromkeys(SLOW, pytest.mark.slow)}
    return [pytest.param(one, marks=marks.get(one, pytest.mark.architectures)) for one in names]


def config_of(name: str, **changes: Any) -> PretrainedConfig:
    """The tiny config of a name: a model type, with or without a form."""
    kind = name.partition(".")[0]
    given = _COMMON | FAMILIES.get(name, {}) | HYBRIDS.get(name, {}) | changes
    return AutoConfig.for_model(
        kind, **{k: v for k, v in given.items() if v is not None or k not in _COMMON}
    )
