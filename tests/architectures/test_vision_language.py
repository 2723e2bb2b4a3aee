"""Vision-language checkpoints are built as text models: the whole model's answer to a text."""

from pathlib import Path

import numpy as np
import pytest
import torch

from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Silent
from snapexport.builder.resolved import resolve
from snapexport.builder.selfcheck import verify
from snapexport.compare.difference import MOST
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.oracle import wholes
from tests.oracle.cases import LOGITS


@pytest.mark.parametrize("kind", wholes.few_by_default())
def test_text_part_answers_as_the_whole_model(kind: str, tmp_path: Path) -> None:
    whole = wholes.make(kind, tmp_path / "m")
    options = {"policy": "full", "prefill_chunk": 32, "batch": 1, "target": "portable"}
    built = build(tmp_path / "m", tmp_path / "b", L_max=96, **options)
    ids = tuple(np.random.default_rng(0).integers(3, 240, 77).tolist())
    logits = open_executor(built, threads=1).prefill_prompt(0, ids).logits
    with torch.no_grad():
        # Llama 4's own forward asks its language model for images, which that does not return.
        model = whole.language_model if kind == "llama4" else whole
        expected = model(input_ids=torch.tensor([ids])).logits[0, -1].numpy()
    texts = [token for token in range(257) if token not in range(250, 254)]
    assert np.abs(logits - expected)[texts].max() < LOGITS
    assert logits[250] == np.finfo(np.float32).min, "an image token may be sampled"
    assert built.manifest.model.architecture == whole.config.architectures[0]
    assert not any("vision" in weights.file for weights in built.manifest.weights)


@pytest.mark.parametrize("kind", wholes.few_by_default())
def test_a_build_compares_the_text_part(kind: str, tmp_path: Path) -> None:
    wholes.make(kind, tmp_path / "m")
    asked = BuildOptions.of(model=str(tmp_path / "m"), out=tmp_path / "b", L_max=256, kv_budget=64)
    assert 0 < verify(resolve(asked), Silent()).largest_difference < MOST
