"""Llama-3.1-70B's shapes are cut for 8 ranks from a checkpoint that is a hole."""

import math
from pathlib import Path

import onnx
import pytest
from transformers import LlamaConfig

from snapexport.builder import build
from snapexport.exporter.model import models
from snapexport.exporter.model.probe import look
from snapexport.exporter.read.families import family_of
from snapexport.files.safetensors import header, read_header

pytestmark = pytest.mark.slow

RANKS = 8
CONFIG = LlamaConfig(
    architectures=["LlamaForCausalLM"],
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_position_embeddings=131072,
)


def parameters() -> dict[str, tuple[int, ...]]:
    return models.parameters(look(CONFIG, family_of("LlamaForCausalLM", "llama")))


def sparse_checkpoint(directory: Path) -> Path:
    CONFIG.save_pretrained(directory)
    tensors = {name: ("BF16", shape) for name, shape in parameters().items()}
    file = directory / "model.safetensors"
    file.write_bytes(header(tensors))
    nbytes = sum(2 * math.prod(shape) for _, shape in tensors.values())
    with file.open("r+b") as out:
        out.truncate(file.stat().st_size + nbytes)
    return directory


def test_70b_is_exported_for_8_ranks_without_its_141_gigabytes(tmp_path: Path) -> None:
    model = sparse_checkpoint(tmp_path / "model")
    made = build(
        model,
        tmp_path / "b",
        L_max=131072,
        kv_budget=8192,
        dtype="bf16",
        target="tensorrt",
        tensor_parallel=RANKS,
    )
    found = parameters().values()
    cut, whole = (sum(math.prod(s) for s in found if len(s) == n) for n in (2, 1))
    assert cut + whole == 70_553_706_496
    weights = 2 * (cut // RANKS + whole)  # norms are whole
    for one in made.ranks:
        files = [one.directory / weight.file for weight in one.manifest.weights]
        assert sum(span.nbytes for file in files for span in read_header(file).values()) == weights
        assert sum(file.stat().st_blocks * 512 for file in files) < 64 << 20
    graph = onnx.load(made.of_rank(7).graph("decode"), load_external_data=False).graph
    collectives = [node for node in graph.node if node.op_type == "DistCollective"]
    assert len(collectives) == 2 * CONFIG.num_hidden_layers + 2
    (cache,) = [
        spec for spec in made.manifest.graphs["decode"].inputs if spec.name.endswith("s.0.key")
    ]
    assert cache.shape == [4, 1, 8192, 128]
