"""Tiny random checkpoints whose attention and logits are far from uniform, the same for a seed."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from .on_disk import kept_folder

VOCABULARY = 257
MAX_POSITIONS = 1024
WINDOW = 24
"""Positions that a sliding layer sees: several fit into the prompts of the tests."""
TINY = 32 * 2**20
"""Most bytes of a checkpoint without changes: a part that its config forgets has its full size."""

_COMMON: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 128,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_MIXED: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
}
_TWO_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0},
}
_GEMMA = _MIXED | {"head_dim": 32, "query_pre_attn_scalar": 20, "tie_word_embeddings": True}

_LATENT: dict[str, Any] = {
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
}
_GROUPS = _LATENT | {"q_lora_rank": 24, "n_group": 4, "topk_group": 2}
_GROUPS |= {"rope_parameters": _YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 1.0}}

_RECIPES: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_parameters": _LLAMA3_ROPE, "head_dim": 16}),
    "llama-linear": (LlamaConfig, {"rope_parameters": _LINEAR_ROPE, "head_dim": 16}),
    "llama-yarn": (LlamaConfig, {"rope_parameters": _YARN_ROPE, "head_dim": 16}),
    "llama-tied": (LlamaConfig, {"head_dim": 16, "tie_word_embeddings": True}),
    "mistral": (
        MistralConfig,
        {
            "num_attention_heads": 8,
            "head_dim": 16,
            "sliding_window": None,
            "num_hidden_layers": 3,
        },
    ),
    "qwen2": (Qwen2Config, {}),
    "qwen2-tied": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"head_dim": 32}),
    "mistral-sliding": (MistralConfig, {"head_dim": 16, "sliding_window": WINDOW}),
    "qwen2-sliding": (
        Qwen2Config,
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "qwen3-sliding": (Qwen3Config, _MIXED | {"head_dim": 32, "use_sliding_window": True}),
    "gemma2": (
        Gemma2Config,
        _GEMMA | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 12.0},
    ),
    "gemma3": (
        Gemma3TextConfig,
        _GEMMA
        | {
            "rope_parameters": _TWO_ROPES,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "deepseek-v2": (DeepseekV2Config, _LATENT | {"q_lora_rank": None}),
    "deepseek-v2-groups": (DeepseekV2Config, _GROUPS | {"topk_method": "group_limited_greedy"}),
    "deepseek-v3": (DeepseekV3Config, _GROUPS),
    "gpt-oss": (
        GptOssConfig,
        {
            "rope_parameters": _YARN_ROPE | {"truncate": False},
            "head_dim": 16,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "intermediate_size": 96,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "swiglu_limit": 1.5,
        },
    ),
}
_EXPERTS: dict[str, Any] = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "mlp_only_layers": [1],
}
_RECIPES |= {
    "qwen3-moe": (Qwen3MoeConfig, _EXPERTS | {"norm_topk_prob": True}),
    "qwen3-moe-sparse": (
        Qwen3MoeConfig,
        _EXPERTS | {"norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": []},
    ),
}
ARCHITECTURES = tuple(_RECIPES)

_GAINS = {"embed_tokens": 0.5, "q_proj": 1.8, "k_proj": 1.8, "v_proj": 1.5, "o_proj": 1.5}
_GAINS |= {"q_a_proj": 1.0, "q_b_proj": 1.8, "kv_a_proj_with_mqa": 1.5, "kv_b_proj": 1.5}
_GAINS |= {"gate_proj": 1.5, "up_proj": 1.5, "down_proj": 1.5, "lm_head": 3.0}
_GAINS |= {"gate_up_proj": 1.5, "gate": 3.0, "router": 3.0}


@kept_folder
def make(
    architecture: str,
    directory: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    blind: bool = False,
    mtp: bool = False,
    mostly_embedding: float | None = None,
    **changes: Any,
) -> Path:
    """Save a random model of `architecture` into `directory`. `changes` go into its config.

    blind: queries are zero, so that all keys score alike and every vote is a tie. mtp: a further
    layer follows, for multi-token prediction. mostly_embedding: so much of its output is left to
    each attention and MLP, so that a token mostly follows from the one before, and MTP often drafts
    the right one.
    """
    config = _config(architecture, changes)
    config.num_hidden_layers += mtp
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, seed)
    if blind:
        _zero_queries(model)
    model.to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
    if mtp:
        _make_last_layer_mtp(directory, seed)
    if mostly_embedding is not None:
        _make_mostly_embedding(directory, mostly_embedding)
    assert changes or sum(one.stat().st_size for one in directory.iterdir()) < TINY, architecture
    return directory


def _config(architecture: str, changes: dict[str, Any]) -> PretrainedConfig:
    from .families import config_of

    if architecture not in _RECIPES:
        return config_of(architecture, **changes)
    kind, recipe = _RECIPES[architecture]
    return kind(**_COMMON | recipe | changes)


def _make_mostly_embedding(directory: Path, share: float) -> None:
    """The head reads a permuted embedding; MTP takes the token's embedding, and adds little."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    order = torch.randperm(len(embedding), generator=torch.Generator().manual_seed(1))
    for name, one in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = share * one
        elif name.endswith(("lm_head.weight", "shared_head.head.weight")):
            tensors[name] = embedding[order].clone()
        elif name.endswith("eh_proj.weight"):
            token, states = one.chunk(2, dim=1)
            tensors[name] = torch.cat([0.5 * torch.eye(len(token)), share * states], dim=1)
    save_file(tensors, file, {"format": "pt"})


def _make_last_layer_mtp(directory: Path, seed: int) -> None:
    """Turn the last layer into one for multi-token prediction, as DeepSeek publishes it."""
    config = json.loads((directory / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    (directory / "config.json").write_text(json.dumps(config))
    file = directory / "model.safetensors"
    tensors = load_file(file)
    stem, width = f"model.layers.{config['num_hidden_layers']}.", config["hidden_size"]
    generator = torch.Generator().manual_seed(1000 + seed)
    dtype = tensors["lm_head.weight"].dtype
    for name in ("enorm", "hnorm", "shared_head.norm"):
        norm = 1 + 0.25 * torch.randn(width, generator=generator)
        tensors[f"{stem}{name}.weight"] = norm.to(dtype)
    projection = 1.5 * torch.randn(width, 2 * width, generator=generator) / math.sqrt(2 * width)
    tensors[f"{stem}eh_proj.weight"] = projection.to(dtype)
    tensors[f"{stem}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{stem}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, file, {"format": "pt"})


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int) -> None:
    """Draw every parameter anew: weights by fan-in and gain, norms around one, biases too."""
    generator = torch.Generator().manual_seed(seed)
    gemma = model.config.model_type.startswith("gemma")
    added = 1.0 if gemma else 0.0  # to the weight of a norm
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight") or _is_norm(model, name):
            parameter.copy_(_norm_mean(name) - added + 0.25 * noise)
        elif name.endswith(".sinks"):
            parameter.copy_(2.0 + noise)
        elif name.endswith("A_log"):
            parameter.copy_(-2.0 + noise)  # states remember tens of tokens
        elif name.endswith("bias"):
            parameter.copy_(0.5 * noise)
        else:
            parameter.copy_(noise * _scale(name, parameter))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    if gemma:
        _weaken_embeddings(model)


def _weaken_embeddings(model: Any) -> None:
    """Gemma scales its tied embeddings by sqrt(hidden_size): each token would follow itself."""
    model.model.embed_tokens.weight *= 0.1
    model.model.norm.weight += 6.0


def _norm_mean(name: str) -> float:
    """Norms of queries and keys set how sharp attention is: there a weight scale has no effect."""
    return 1.8 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0


def _scale(name: str, parameter: torch.Tensor) -> float:
    *_, module, last = name.split(".")
    gain = _GAINS.get(last if module == "experts" else module, 1.5)
    return gain if "embed_tokens" in name else gain / math.sqrt(parameter.shape[-1])


def _is_norm(model: PreTrainedModel, name: str) -> bool:
    module, _, last = name.rpartition(".")
    return last == "weight" and "Norm" in type(model.get_submodule(module)).__name__


@torch.no_grad()
def _zero_queries(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if "q_proj" in name:
            parameter.zero_()
