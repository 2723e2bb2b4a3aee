"""OpenVINO reads weights of integers as they are stored. It rounds activations to 8 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from snapexport.build import build
from snapexport.contract.build_directory import Build
from snapexport.exporter.integers.read import dequantized
from snapexport.runtime.requests.llm import LLM
from tests.exporter import gguf_files
from tests.exporter.test_weights import weights_of

pytest.importorskip("openvino")

PROMPT = np.random.default_rng(0).integers(3, 250, 50).tolist()
OPTIONS: dict[str, Any] = {"L_max": 64, "policy": "full", "prefill_chunk": 32, "target": "openvino"}


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_rounded_weights_give_the_logits_of_transformers(
    weights: str, checkpoint: Path, tmp_path: Path
) -> None:
    made = build(checkpoint, tmp_path / "b", **OPTIONS, weights=weights)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    sizes = model.state_dict()
    rounded = dequantized(weights_of(made)).items()
    model.load_state_dict({n: one[..., : sizes[n].shape[-1]] for n, one in rounded}, strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0, -1].numpy()
    assert_close(logits(made), expected)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_kept_integers_give_the_logits_of_the_dequantized_file(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = gguf_files.make("llama", tmp_path, gguf.GGMLQuantizationType[kind])
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
