"""Vision-language checkpoints are built as text models: the whole model's answer to a text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from snapexport.build import build
from tests.oracle.cases import LOGITS
from tests.oracle.raw import RawBuild, prefill_and_compress

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
    "llava": {
        "text_config": _TEXT | {"model_type": "llama", "rope_parameters": _ROPE},
        "vision_config": _VISION | {"model_type": "clip_vision_model"},
        "image_token_index": 250,
    },
    "mistral3": {
        "text_config": _TEXT | {"model_type": "mistral", "rope_parameters": _ROPE},
        "vision_config": _VISION | {"model_type": "pixtral"},
        "image_token_index": 250,
    },
    "qwen2_5_vl": _qwen({"fullatt_block_indexes": [1]}, mrope_section=[2, 3, 3]),
    "qwen3_vl": _qwen(
        {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        mrope_section=[3, 3, 2],
        mrope_interleaved=True,
    ),
}


@pytest.mark.parametrize("kind", WHOLES)
def test_text_part_answers_as_the_whole_model(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **WHOLES[kind]))
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.mul_(4.0)  # the usual initialization makes attention nearly uniform
    whole.eval().save_pretrained(tmp_path / "m")
    options = {"policy": "full", "prefill_chunk": 32, "batch": 1, "target": "portable"}
    built = build(tmp_path / "m", tmp_path / "b", L_max=96, **options)
    ids = tuple(np.random.default_rng(0).integers(3, 240, 77).tolist())
    logits, _ = prefill_and_compress(RawBuild(tmp_path / "b"), ids)
    with torch.no_grad():
        # Llama 4's own forward asks its language model for images, which that does not return.
        model = whole.language_model if kind == "llama4" else whole
        expected = model(input_ids=torch.tensor([ids])).logits[0, -1].numpy()
    texts = [token for token in range(257) if token not in range(250, 254)]
    assert np.abs(logits - expected)[texts].max() < LOGITS
    assert logits[250] == np.finfo(np.float32).min, "an image token may be sampled"
    assert built.manifest.model.architecture == whole.config.architectures[0]
    assert not any("vision" in weights.file for weights in built.manifest.weights)
