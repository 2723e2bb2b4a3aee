"""One of longrope's two sets of frequencies holds for every sequence of a build."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from tests.builds import build
from tests.oracle.cases import LOGITS, prompt
from tests.oracle.checkpoints import randomise
from tests.oracle.raw import RawBuild, prefill_and_compress

TRAINED = 64
OPTIONS = {"policy": "full", "prefill_chunk": 20, "batch": 1, "target": "portable"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("longrope")
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0, 8.0],
        "original_max_position_embeddings": TRAINED,
    }
    config = Phi3Config(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        original_max_position_embeddings=TRAINED,
        rope_parameters=rope,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    made = AutoModelForCausalLM.from_config(config)
    randomise(made, 0)
    made.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("L_max", "length", "chosen"), [(160, 100, "long"), (60, 50, "short")])
def test_set_of_frequencies_follows_L_max(
    model: Path, tmp_path: Path, L_max: int, length: int, chosen: str
) -> None:
    built = build(model, tmp_path / "b", L_max=L_max, longrope=True, **OPTIONS)
    ids = prompt(length)
    logits, _ = prefill_and_compress(RawBuild(tmp_path / "b"), ids)
    # transformers chooses by the sequence: this one has the length that L_max stands for.
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0, -1].numpy()
    assert np.abs(logits - expected).max() < LOGITS
    assert built.manifest.model.longrope == chosen
    assert Build.open(tmp_path / "b").manifest.model.longrope == chosen


def test_longrope_without_the_flag_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="outgrows 64 positions") as refused:
        build(model, tmp_path / "b", L_max=160, **OPTIONS)
    assert "--longrope" in refused.value.hint


def test_flag_is_refused_for_another_rope(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--longrope is for models with a RoPE of type 'longrope'"):
        build(checkpoint, tmp_path / "b", L_max=96, longrope=True)
