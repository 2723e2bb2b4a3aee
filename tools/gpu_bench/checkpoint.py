"""A checkpoint of random weights, written on the spot, in pieces, without torch.

The numbers are one block of normal ones, over and over, each tensor from another place in it: what
a matrix product takes does not depend on them, and 16 GB of fresh ones would take minutes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.targets import DType

_NAMES: dict[str, tuple[str, str]] = {"fp16": ("F16", "float16"), "bf16": ("BF16", "bfloat16")}
_BLOCK = (1 << 24) + 1
"""Numbers of the block: odd, so that no two rows of a matrix are alike."""
_PIECE = 1 << 24

Shape = tuple[int, ...]


def write_checkpoint(directory: Path, shape: dict[str, Any], dtype: DType) -> None:
    """config.json and model.safetensors; whole, or not there at all."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
    config |= {"dtype": _NAMES[dtype][1], "tie_word_embeddings": False, "eos_token_id": 1} | shape
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    unfinished = directory / "model.safetensors.unfinished"
    with unfinished.open("wb") as file:
        file.write(_header(shape, dtype))
        for piece in _numbers(shape, dtype):
            piece.tofile(file)
    unfinished.rename(directory / "model.safetensors")


def tensors(shape: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Names and shapes as transformers' LlamaForCausalLM has them."""
    hidden, inner, vocab = (shape[f"{name}_size"] for name in ("hidden", "intermediate", "vocab"))
    narrow = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(shape["num_hidden_layers"]):
        parts: dict[str, Shape] = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (narrow, hidden),
            "self_attn.v_proj": (narrow, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for name, one in parts.items():
            yield f"model.layers.{layer}.{name}.weight", one
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def _header(shape: dict[str, Any], dtype: DType) -> bytes:
    """8 bytes of length, then JSON; https://github.com/huggingface/safetensors."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, one in tensors(shape):
        begin, end = end, end + 2 * int(np.prod(one))
        entries[name] = {"dtype": _NAMES[dtype][0], "shape": one, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _numbers(shape: dict[str, Any], dtype: DType) -> Iterator[NDArray[np.uint16]]:
    """All tensors' bits: ones for norms, else a walk through the block."""
    rng = np.random.default_rng(0)
    scale = shape["hidden_size"] ** -0.5
    block = _bits(rng.standard_normal(_BLOCK, np.float32) * np.float32(scale), dtype)
    twice = np.concatenate([block, block[:_PIECE]])
    place = 0
    for _, one in tensors(shape):
        left = int(np.prod(one))
        if len(one) == 1:
            yield _bits(np.ones(left, np.float32), dtype)
            continue
        while left:
            piece = min(left, _PIECE)
            yield twice[place : place + piece]
            place = (place + piece) % _BLOCK
            left -= piece


def _bits(numbers: NDArray[np.float32], dtype: DType) -> NDArray[np.uint16]:
    if dtype == "fp16":
        return numbers.astype(np.float16).view(np.uint16)
    # bf16 is the upper half of fp32; what is cut off does not matter here.
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)
