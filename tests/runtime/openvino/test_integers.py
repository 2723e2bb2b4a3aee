"""OpenVINO reads weights of integers as they are stored. It rounds activations to 8 bits."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from transformers import AutoModelForCausalLM

from snapexport.contract.build_directory import Build
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.runtime.requests.llm import LLM
from tests.builds import build
from tests.exporter import gguf_files
from tests.exporter.weights.test_weights import weights_of

openvino = pytest.importorskip("openvino")

from snapexport.runtime.openvino.operators import IntegerProducts  # noqa: E402

PROMPT = np.random.default_rng(0).integers(3, 250, 50).tolist()
OPTIONS: dict[str, Any] = {"L_max": 64, "policy": "full", "prefill_chunk": 32, "target": "openvino"}


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_rounded_weights_give_the_logits_of_transformers(
    weights: str, checkpoint: Path, tmp_path: Path
) -> None:
    made = build(checkpoint, tmp_path / "b", **OPTIONS, weights=weights)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    sizes = model.state_dict()
    rounded = dequantize(weights_of(made)).items()
    model.load_state_dict({n: one[..., : sizes[n].shape[-1]] for n, one in rounded}, strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0, -1].numpy()
    assert_close(logits(made), expected)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_kept_integers_give_the_logits_of_the_dequantized_file(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = gguf_files.make("qwen2", tmp_path, gguf.GGMLQuantizationType[kind])
    kept = build(file, tmp_path / "b", **OPTIONS)
    whole = build(file, tmp_path / "w", **OPTIONS, weights="dequantize")
    assert (kept.manifest.quantization, whole.manifest.quantization) == ("keep", None)
    assert_close(logits(kept), logits(whole))


def assert_close(got: Any, expected: Any) -> None:
    """But for the rounding of activations."""
    assert np.abs(got - expected).mean() < 0.08 * expected.std()


def logits(made: Build) -> Any:
    executor = LLM(made.directory, backend="openvino", threads=1).executor
    return executor.prefill_prompt(0, PROMPT).logits.copy()


@pytest.mark.parametrize(
    ("weights", "batch", "is_same"), [("int8", 9, True), ("int4", 8, True), ("int4", 9, False)]
)
def test_one_engine_takes_all_steps_of_a_build(
    weights: str, batch: int, is_same: bool, checkpoint: Path, tmp_path: Path
) -> None:
    options = OPTIONS | {"policy": "snapstream", "kv_budget": 24, "decode_batches": (2,)}
    made = build(checkpoint, tmp_path / "b", **options, weights=weights, batch=batch)
    ours, other = (
        LLM(made.directory, backend=backend, threads=1).executor
        for backend in ("openvino", "onnxruntime")
    )
    for slot in range(batch):
        ours.prefill_prompt(slot, PROMPT[slot:])
        other.rows.copy_in(slot, ours.rows.view(slot))
    lengths, tokens = len(PROMPT) - np.arange(batch), np.array(PROMPT[:batch])

    def step(executor: Any, rows: int) -> Any:
        fed = (one[:rows] for one in (tokens, lengths, lengths))
        return executor.decode(*fed).logits[:2].copy()

    found, expected = step(ours, 2), step(other, 2)
    assert np.array_equal(found, expected) == is_same
    assert_close(found, expected)
    np.testing.assert_allclose(step(ours, batch), found, atol=1e-5)


@pytest.mark.parametrize("width", [80, 96, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_agree_with_onnxruntime_where_rows_end_within_a_byte_or_a_block(
    width: int, bits: int, zeros: bool
) -> None:
    rng, rows, blocks = np.random.default_rng(width), 6, -(-width // 32)
    weights = {
        "q": rng.integers(0, 256, (rows, blocks, 4 * bits), np.uint8),
        "scales": rng.random((rows, blocks), np.float32),
        "zeros": rng.integers(0, 256, (rows, -(-blocks * bits // 8)), np.uint8),
    }
    names = [*weights][: 3 if zeros else 2]
    sizes = {"N": rows, "K": width, "bits": bits, "block_size": 32}
    node = helper.make_node("MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", **sizes)
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, size])
        for name, size in (("x", width), ("y", rows))
    ]
    held = [numpy_helper.from_array(weights[name], name) for name in names]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    raw = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    x = rng.standard_normal((3, width), np.float32)
    (expected,) = onnxruntime.InferenceSession(raw).run(None, {"x": x})
    core = openvino.Core()
    core.add_extension(IntegerProducts(lambda name: weights[name]).extension())
    model = core.compile_model(core.read_model(io.BytesIO(raw)), "CPU")
    np.testing.assert_allclose(model(x)[0], expected, rtol=0.02, atol=0.05 * expected.std())
