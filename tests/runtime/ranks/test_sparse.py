"""Llama-3.1-70B's shapes are cut for 8 ranks from a checkpoint that is a hole."""

from pathlib import Path

import onnx
import pytest
from transformers import LlamaConfig

from snapexport.build import build
from snapexport.exporter.shapes import parameters
from snapexport.files.safetensors import header, read_header

pytestmark = pytest.mark.slow

RANKS, LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, WIDTH, VOCABULARY = (
    8,
    80,
    8192,
    28672,
    64,
    8,
    128,
    128256,
)


def sparse_checkpoint(directory: Path) -> Path:
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH,
        vocab_size=VOCABULARY,
        max_position_embeddings=131072,
    )
    config.save_pretrained(directory)
    tensors = {name: ("BF16", shape) for name, shape in parameters(config).items()}
    file = directory / "model.safetensors"
    file.write_bytes(header(tensors))
    nbytes = sum(2 * _count(shape) for _, shape in tensors.values())
    with file.open("r+b") as out:
        out.truncate(file.stat().st_size + nbytes)
    return directory


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


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
    matrices = 2 * HIDDEN * HEADS * WIDTH + 2 * HIDDEN * KV_HEADS * WIDTH + 3 * HIDDEN * INNER
    cut = LAYERS * matrices + 2 * VOCABULARY * HIDDEN
    weights = 2 * (cut // RANKS + (2 * LAYERS + 1) * HIDDEN)  # norms are whole
    for one in made.ranks:
        files = [one.directory / weight.file for weight in one.manifest.weights]
        assert sum(span.nbytes for file in files for span in read_header(file).values()) == weights
        assert sum(file.stat().st_blocks * 512 for file in files) < 64 << 20
    graph = onnx.load(made.of_rank(7).graph("decode"), load_external_data=False).graph
    collectives = [node for node in graph.node if node.op_type == "DistCollective"]
    assert len(collectives) == 2 * LAYERS + 2
    (cache,) = [
        spec for spec in made.manifest.graphs["decode"].inputs if spec.name.endswith("s.0.key")
    ]
    assert cache.shape == [4, KV_HEADS // RANKS, 8192, WIDTH]
