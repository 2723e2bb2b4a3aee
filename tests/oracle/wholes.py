"""Tiny vision-language models of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_TEXT: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "image_size": 32, "patch_size": 8}
_VISION |= {"num_hidden_layers": 2, "num_attention_heads": 2}
_QWEN = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8}
_QWEN_TOKENS = {"image_token_id": 250, "video_token_id": 251}
_QWEN_TOKENS |= {"vision_start_token_id": 252, "vision_end_token_id": 253}


def _qwen(vision: dict[str, Any], **rope: Any) -> dict[str, Any]:
    text = _TEXT | {"rope_parameters": _ROPE | rope}
    vision = _QWEN | {"out_hidden_size": 64} | vision
    return {"text_config": text, "vision_config": vision, **_QWEN_TOKENS}


_LLAMA: dict[str, Any] = {
    "text_config": _TEXT | {"model_type": "llama", "rope_parameters": _ROPE},
    "image_token_id": 250,
}
WHOLES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": _TEXT
        | {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 24,
        },
        "vision_config": _VISION | {"model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
        "image_token_index": 250,
    },
    "llama4": {
        "text_config": _TEXT
        | {
            "num_hidden_layers": 4,
            "attention_chunk_size": 24,
            "num_local_experts": 4,
            "intermediate_size_mlp": 112,
            "rope_parameters": _ROPE,
        },
        "vision_config": _VISION
        | {"intermediate_size": 128, "vision_output_dim": 32}
        | {"projector_input_dim": 32, "projector_output_dim": 32},
        "image_token_index": 250,
    },
    **dict.fromkeys(("idefics3", "smolvlm"), _LLAMA | {"vision_config": _VISION}),
    "llava": _LLAMA
    | {
        "vision_config": _VISION | {"model_type": "clip_vision_model"},
        "image_token_index": 250,
    },
    "mistral3": {
        "text_config": _TEXT | {"model_type": "mistral", "rope_parameters": _ROPE},
        "vision_config": _VISION | {"model_type": "pixtral"},
        "image_token_index": 250,
    },
    "qwen2_5_vl": _qwen({"fullatt_block_indexes": [1]}, mrope_section=[2, 3, 3]),
    "qwen3_5": _qwen(
        {"num_position_embeddings": 16},
        mrope_section=[3, 3, 2],
        mrope_interleaved=True,
        partial_rotary_factor=1.0,
    ),
    "qwen3_vl": _qwen(
        {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        mrope_section=[3, 3, 2],
        mrope_interleaved=True,
    ),
}


FEW = ("mistral3",)


WHOLES["qwen3_5"]["text_config"] |= {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
}


def few_by_default() -> list[Any]:
    """Parameters of a test: all but FEW are for `make architectures`."""
    marks = {True: (), False: pytest.mark.architectures}
    return [pytest.param(kind, marks=marks[kind in FEW]) for kind in WHOLES]


def make(kind: str, directory: Path) -> Any:
    """A random model, which is saved into `directory`."""
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **WHOLES[kind]))
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.mul_(4.0)  # the usual initialization makes attention nearly uniform
    whole.eval().save_pretrained(directory)
    return whole
