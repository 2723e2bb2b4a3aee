"""Writes checkpoints of random weights, in pieces, without torch.

Speed depends on shapes alone. The weights repeat one block of normal random numbers, each tensor
from another offset, since 16 GB of fresh numbers would take minutes. A sparse checkpoint has a
hole in a file for weights: it measures exports of what does not fit on the machine.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.builder.staging import staged
from snapexport.files import safetensors
from snapexport.files.dtypes import BY_FLAG, DType

_BLOCK = (1 << 24) + 1
"""Numbers in the block: odd, so that no two rows of a matrix are equal."""
_PART = 1 << 24

Shape = tuple[int, ...]


def _shape(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
    """By the names of config.json."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": 262144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": True,
    } | more


_LLAMA_3: dict[str, Any] = {
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
}
_DEEPSEEK_R1: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "rms_norm_eps": 1e-6,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "tie_word_embeddings": False,
}
SHAPES = {
    # 125 M parameters; the heads of Llama-3-8B in a quarter of its width.
    "small": _shape(32000, 1024, 4096, 4, 32, 8, head_dim=128),
    # The same with the vocabulary of Llama-3.
    "wide-vocabulary": _shape(128256, 1024, 4096, 4, 32, 8, head_dim=128),
    # Qwen2.5-0.5B's widths, 4 of its 24 layers and a small vocabulary.
    "qwen-thin": _shape(8192, 896, 4864, 4, 14, 2),
    # Llama-3.2-1B's, Llama-3.1-8B's and -70B's, from their config.json.
    "1b": _shape(128256, 2048, 8192, 16, 32, 8),
    "8b": _shape(128256, 4096, 14336, 32, 32, 8, **_LLAMA_3),
    "70b": _shape(128256, 8192, 28672, 80, 64, 8, **_LLAMA_3),
    # DeepSeek-V3's and R1's, from their config.json: 671 B parameters.
    "r1": _DEEPSEEK_R1,
    # Its latents and head sizes, but 4 layers, 16 heads and 8 experts: 92 M parameters.
    "latents": _DEEPSEEK_R1
    | {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 4,
        "first_k_dense_replace": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": 384,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
    },
    # 110 and 370 MB in fp32: what the memory of a running build is measured on.
    "narrow": _shape(8192, 640, 1792, 4, 10, 2, max_position_embeddings=32768),
    "medium": _shape(8192, 1024, 3584, 6, 16, 4, max_position_embeddings=32768),
}


def make(name: str, dtype: DType, directory: Path) -> Path:
    """The checkpoint's directory; made if missing."""
    out = directory / (name if dtype == "fp32" else f"{name}.{dtype}")
    if not out.is_dir():
        with staged(out, overwrite=False) as unfinished:
            write(unfinished, SHAPES[name], dtype)
    return out


def write(directory: Path, shape: dict[str, Any], dtype: DType, *, sparse: bool = False) -> int:
    """Write config.json, a tokenizer and model.safetensors. Returns the bytes of the weights."""
    write_config(directory, shape, dtype)
    _write_tokenizer(directory, shape["vocab_size"])
    stored = BY_FLAG[dtype].safetensors
    entries = {name: (stored, one) for name, one in tensors(shape)}
    header = safetensors.header(entries)
    size = sum(safetensors.tensor_bytes(*entry) for entry in entries.values())
    with (directory / "model.safetensors").open("wb") as file:
        file.write(header)
        if sparse:
            file.truncate(len(header) + size)
        else:
            for part in _numbers(shape, dtype):
                part.tofile(file)
    return size


def write_config(directory: Path, shape: dict[str, Any], dtype: DType) -> None:
    """Write config.json alone, which is enough to plan a build."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
    config |= {"dtype": BY_FLAG[dtype].numpy, "bos_token_id": 1, "eos_token_id": 2} | shape
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def tensors(shape: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of the tensors of a checkpoint."""
    return _of_latents(shape) if "kv_lora_rank" in shape else _of_heads(shape)


def _of_latents(shape: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """As published for DeepSeek-V3, in bf16 and without the layer for several tokens a step."""
    hidden, vocab, heads = (shape[k] for k in ("hidden_size", "vocab_size", "num_attention_heads"))
    rank, rope, nope, value = (
        shape[k] for k in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    expert, experts = shape["moe_intermediate_size"], shape["n_routed_experts"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(shape["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        yield f"{block}.self_attn.q_a_proj.weight", (shape["q_lora_rank"], hidden)
        yield f"{block}.self_attn.q_a_layernorm.weight", (shape["q_lora_rank"],)
        yield f"{block}.self_attn.q_b_proj.weight", (heads * (nope + rope), shape["q_lora_rank"])
        yield f"{block}.self_attn.kv_a_proj_with_mqa.weight", (rank + rope, hidden)
        yield f"{block}.self_attn.kv_a_layernorm.weight", (rank,)
        yield f"{block}.self_attn.kv_b_proj.weight", (heads * (nope + value), rank)
        yield f"{block}.self_attn.o_proj.weight", (hidden, heads * value)
        yield f"{block}.input_layernorm.weight", (hidden,)
        yield f"{block}.post_attention_layernorm.weight", (hidden,)
        if layer < shape["first_k_dense_replace"]:
            yield from _mlp(f"{block}.mlp", hidden, shape["intermediate_size"])
            continue
        yield f"{block}.mlp.gate.weight", (experts, hidden)
        yield f"{block}.mlp.gate.e_score_correction_bias", (experts,)
        yield from _mlp(f"{block}.mlp.shared_experts", hidden, expert * shape["n_shared_experts"])
        for index in range(experts):
            yield from _mlp(f"{block}.mlp.experts.{index}", hidden, expert)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def _mlp(name: str, hidden: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.gate_proj.weight", (inner, hidden)
    yield f"{name}.up_proj.weight", (inner, hidden)
    yield f"{name}.down_proj.weight", (hidden, inner)


def _of_heads(shape: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """The tensors of transformers' LlamaForCausalLM."""
    hidden, inner, vocab = (shape[f"{name}_size"] for name in ("hidden", "intermediate", "vocab"))
    wide, narrow = (
        shape[f"num_{kind}_heads"] * shape["head_dim"] for kind in ("attention", "key_value")
    )
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(shape["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        yield f"{block}.self_attn.q_proj.weight", (wide, hidden)
        yield f"{block}.self_attn.k_proj.weight", (narrow, hidden)
        yield f"{block}.self_attn.v_proj.weight", (narrow, hidden)
        yield f"{block}.self_attn.o_proj.weight", (hidden, wide)
        yield from _mlp(f"{block}.mlp", hidden, inner)
        yield f"{block}.input_layernorm.weight", (hidden,)
        yield f"{block}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not shape["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def _write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write a tokenizer with a word for each token, for programs that need the file."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{n}": n for n in range(3, vocab_size)}
    Tokenizer(WordLevel(words, unk_token="<unk>")).save(str(directory / "tokenizer.json"))
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | names
    (directory / "tokenizer_config.json").write_text(json.dumps(config) + "\n")


def _numbers(shape: dict[str, Any], dtype: DType) -> Iterator[NDArray[Any]]:
    """The weights of all tensors: ones for norms, else numbers of the block."""
    rng = np.random.default_rng(0)
    scale = shape["hidden_size"] ** -0.5
    block = _typed(rng.standard_normal(_BLOCK, np.float32) * np.float32(scale), dtype)
    twice = np.concatenate([block, block[:_PART]])
    place = 0
    for _, one in tensors(shape):
        left = int(np.prod(one))
        if len(one) == 1:
            yield _typed(np.ones(left, np.float32), dtype)
            continue
        while left:
            part = min(left, _PART)
            yield twice[place : place + part]
            place = (place + part) % _BLOCK
            left -= part


def _typed(numbers: NDArray[np.float32], dtype: DType) -> NDArray[Any]:
    if dtype == "bf16":
        # bf16 is the upper half of fp32; what is cut off does not matter here.
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(np.float16 if dtype == "fp16" else np.float32)
