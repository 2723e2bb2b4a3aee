"""The real parser and builder accept every graph of a rank, with TensorRT's collectives."""

from pathlib import Path
from typing import Any

import pytest

from tests.builds import build
from tests.oracle import checkpoints
from tests.rtx.test_graphs import REAL_LATENTS, SMALL, accepted_graphs, load

OPTIONS = SMALL | {"target": "tensorrt-rtx", "L_max": 512, "prefill_chunk": 64}
HEADS: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
HEADS |= {"num_hidden_layers": 3, "vocab_size": 512}
LATENTS: dict[str, Any] = REAL_LATENTS | {"num_attention_heads": 8, "num_key_value_heads": 8}
LATENTS |= {"num_hidden_layers": 3, "vocab_size": 512}
BUILDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: checkpoint, changes of its configuration, changes of OPTIONS
    "llama, 8 ranks": ("llama", HEADS | {"hidden_size": 1024}, {"tensor_parallel": 8}),
    "llama, extended, fp16": (
        "llama",
        HEADS,
        {"tensor_parallel": 4, "extend": True, "top_tokens": 16, "dtype": "fp16"},
    ),
    "llama, weights of its own": ("llama", HEADS, {"tensor_parallel": 2, "share_weights": False}),
    "qwen3-moe": (
        "qwen3-moe",
        HEADS | {"mlp_only_layers": [1], "moe_intermediate_size": 128},
        {"tensor_parallel": 4, "batch": 1},
    ),
    "deepseek-v3": ("deepseek-v3", LATENTS, {"tensor_parallel": 4}),
    "deepseek-v3, parallel over the batch": (
        "deepseek-v3",
        LATENTS,
        {"tensor_parallel": 4, "batch": 8, "data_parallel_attention": True},
    ),
    "deepseek-v3, single shot": (
        "deepseek-v3",
        LATENTS,
        {"tensor_parallel": 2, "L_max": 64, "prefill_chunk": 64},
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_the_real_builder_accepts_every_ranks_graphs(name: str, tmp_path: Path) -> None:
    architecture, changes, options = BUILDS[name]
    model = checkpoints.make(architecture, tmp_path / "model", **changes)
    made = build(model, tmp_path / "b", **OPTIONS | options)
    assert len(made.ranks) == options["tensor_parallel"]
    accepted_graphs(made, softcapped=False)
    for name in ("prefill", "decode"):
        assert "DistCollective" in {node.op_type for node in load(made, name).graph.node}
