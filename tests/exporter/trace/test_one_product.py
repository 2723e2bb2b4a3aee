"""One product for q, k and v: graphs of 16 bits against those with a product each."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from snapexport.builder.verify import verify
from snapexport.contract.build_directory import Build
from snapexport.files.safetensors import TensorSpan, find_span
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.oracle import cases

SIZES: dict[str, Any] = {"L_max": 96, "L_recent": 16, "K": 12, "L_obs": 8, "batch": 2}
OPTIONS: dict[str, Any] = {"prefill_chunk": 32, "dtype": "fp16", "decode_attention": "valid"}
QKV = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv"]


def made(folder: Path, checkpoint: str = "llama", **options: Any) -> Build:
    return build(cases.checkpoint(checkpoint), folder, **SIZES | OPTIONS | options)


def logits(made: Build) -> Any:
    executor = open_executor(made, backend="onnxruntime", threads=1)
    found = [executor.prefill_prompt(0, cases.prompt(70)).logits.copy()]
    positions = np.array([70, 0])
    for step in range(3):
        ids = np.array([11 + step, 0])
        found.append(executor.decode(ids, positions, np.array([70, 0]))[0].logits.copy())
        positions[0] += 1
    executor.close()
    return np.stack(found)


def products(made: Build, graph: str) -> list[str]:
    model = onnx.load(made.graph(graph), load_external_data=False)
    kinds = ("FusedMatMul", "MatMulNBits")
    return [n.input[1] for n in model.graph.node if n.op_type in kinds and "attn" in n.input[1]]


@pytest.mark.parametrize("checkpoint", ["llama", "qwen2"])
def test_joined_weights_keep_their_names_and_the_logits(tmp_path: Path, checkpoint: str) -> None:
    """qwen2 has biases, which are joined too. Linked files are the checkpoint's: none is joined."""
    joined, apart = made(tmp_path / "joined", checkpoint), tmp_path / "apart"
    plain = build(cases.checkpoint(checkpoint), apart, **SIZES | OPTIONS, link_weights=True)
    for graph in ("prefill", "decode"):
        assert products(joined, graph)[:2] == [f"{QKV[0]}+2", QKV[0].replace("q_proj", "o_proj")]
        assert products(plain, graph)[:3] == QKV
    file = load_file(joined.directory / "weights" / f"{QKV[0]}+2.safetensors")
    assert list(file) == QKV
    np.testing.assert_allclose(logits(joined), logits(plain), atol=2e-2)
    verify(joined)


def test_joined_weights_are_shared_inputs(tmp_path: Path) -> None:
    shared, own = made(tmp_path / "shared", share_weights=True), made(tmp_path / "own")
    assert f"{QKV[0]}+2" in {spec.name for spec, _ in shared.shared_weights(["decode"])}
    np.testing.assert_array_equal(logits(shared), logits(own))


def test_integers_are_joined_where_their_forms_are_alike(tmp_path: Path) -> None:
    found = made(tmp_path / "made", weights="int8")
    assert products(found, "decode")[0] == f"{QKV[0]}.int8+2"
    assert np.isfinite(logits(found)).all()


def test_fp32_keeps_a_product_each(tmp_path: Path) -> None:
    assert products(made(tmp_path / "made", dtype="fp32"), "decode")[:3] == QKV


SPANS = {
    "a": TensorSpan(Path("f"), 64, 32, "F16", (2, 8)),
    "b": TensorSpan(Path("f"), 96, 16, "F16", (1, 8)),
    "c": TensorSpan(Path("f"), 112, 16, "F16", (2, 4)),
    "d+1": TensorSpan(Path("g"), 64, 16, "F16", (1, 8)),
}


def test_joined_span_covers_the_rows_of_all() -> None:
    assert find_span(SPANS, "a+1") == TensorSpan(Path("f"), 64, 48, "F16", (3, 8))
    assert find_span(SPANS, "d+1") is SPANS["d+1"] and find_span(SPANS, "b") is SPANS["b"]


@pytest.mark.parametrize("name", ["a+2", "a+3", "b+1", "x+1", "a+", "a+x", "a+-1", "d"])
def test_joined_span_of_other_widths_or_names_is_none(name: str) -> None:
    assert find_span(SPANS, name) is None
