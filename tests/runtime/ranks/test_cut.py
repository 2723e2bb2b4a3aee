"""A rank's weights are the rows and columns of the checkpoint's that NumPy slices out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from snapexport.contract.build_directory import Build
from snapexport.exporter.model.ranks import Columns, Share, cut
from snapexport.exporter.weights.tensor_file import blocks, is_hole
from snapexport.files.safetensors import TensorSpan, read_header
from tests.builds import build
from tests.oracle import checkpoints

Array = NDArray[np.float32]
RANKS = 4
SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 264}
GEOMETRY = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}


def part(rank: int, axis: int) -> Callable[[Array], Array]:
    return lambda whole: np.split(whole, RANKS, axis)[rank]


def whole(array: Array) -> Array:
    return array


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks") / "model"
    return checkpoints.make("llama", directory, **SIZES, attention_bias=True)


@pytest.fixture(scope="module")
def made(model: Path) -> Build:
    return build(model, model.parent / "b", tensor_parallel=RANKS, **GEOMETRY)


def stored(build: Build) -> dict[str, Array]:
    files = [build.directory / one.file for one in build.manifest.weights]
    return {name: array for file in files for name, array in load_file(file).items()}


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_rank_has_its_rows_and_columns_of_every_weight(
    rank: int, model: Path, made: Build
) -> None:
    given, found = load_file(model / "model.safetensors"), stored(made.of_rank(rank))
    attention, mlp = "model.layers.1.self_attn", "model.layers.1.mlp"
    wanted = {
        f"{attention}.q_proj.weight": part(rank, 0),
        f"{attention}.k_proj.bias": part(rank, 0),
        f"{attention}.o_proj.weight": part(rank, 1),
        f"{attention}.o_proj.bias": whole,
        f"{mlp}.gate_proj.weight": part(rank, 0),
        f"{mlp}.up_proj.weight": part(rank, 0),
        f"{mlp}.down_proj.weight": part(rank, 1),
        "model.embed_tokens.weight": part(rank, 1),
        "lm_head.weight": part(rank, 0),
        "model.norm.weight": whole,
    }
    for name, of in wanted.items():
        assert np.array_equal(found[name], of(given[name])), name
    assert found.keys() == given.keys()


def test_rows_of_a_rank_are_a_span_of_the_checkpoints_file(model: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    span = read_header(model / "model.safetensors")[name]
    rows = cut(span, 0, Share(2, RANKS))
    assert isinstance(rows, TensorSpan)
    assert (rows.offset, rows.nbytes) == (span.offset + span.nbytes // 2, span.nbytes // 4)
    assert isinstance(cut(span, 1, Share(2, RANKS)), Columns)


def test_weights_of_a_rank_are_near_one_part_of_all(made: Build, model: Path) -> None:
    all_of_them = (model / "model.safetensors").stat().st_size
    for one in made.ranks:
        held = sum(weights.size for weights in one.manifest.weights)
        assert held < 1.06 * all_of_them / RANKS


def test_ranks_have_the_same_graphs_to_the_byte(made: Build) -> None:
    first, *others = (
        {p.name: p.read_bytes() for p in one.directory.glob("*.onnx")} for one in made.ranks
    )
    assert len(first) > 20 and all(other == first for other in others)


@pytest.mark.slow
def test_experts_are_cut_inside_each_expert(tmp_path: Path) -> None:
    """Gates and ups lie in turn: row 2i is row i of the gates, row 2i + 1 of the ups."""
    model = checkpoints.make("qwen3-moe", tmp_path / "model", **SIZES)
    made = build(model, tmp_path / "b", tensor_parallel=2, **GEOMETRY)
    given = load_file(model / "model.safetensors")
    stem = "model.layers.0.mlp.experts"
    for rank, one in enumerate(made.ranks):
        found = stored(one)
        for expert in range(8):
            gate, up, down = (
                given[f"{stem}.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down")
            )
            rows = slice(16 * rank, 16 * rank + 16)
            assert np.array_equal(found[f"{stem}.gate_up"][expert, 0::2], gate[rows])
            assert np.array_equal(found[f"{stem}.gate_up"][expert, 1::2], up[rows])
            assert np.array_equal(found[f"{stem}.down"][expert], down[:, rows])


def test_holes_of_a_sparse_checkpoint_stay_holes(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as out:
        out.truncate(1 << 26)
    span = TensorSpan(file, 0, 1 << 26, "F32", (1 << 12, 1 << 12))
    parts = list(blocks(cut(span, 1, Share(0, 8))))
    assert all(is_hole(block) for block in parts)
    assert sum(block.size for block in parts) == 1 << 21
