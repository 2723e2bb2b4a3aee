"""Builds of several ranks that are not possible are refused, with what is."""

from pathlib import Path
from typing import Any

import pytest

from tests.oracle import checkpoints
from tests.refused import refused

LENGTHS = ("--L-max", "64")


@pytest.mark.parametrize(
    ("architecture", "changes", "ranks", "message"),
    [
        ("llama", {}, 3, "4 attention heads are not a multiple"),
        ("llama", {}, 4, "2 KV heads are not a multiple"),
        ("llama", {}, 2, "257 tokens of the vocabulary"),
        ("llama", {"vocab_size": 256, "intermediate_size": 111}, 2, "111 columns of the MLPs"),
        ("qwen3-moe", {"vocab_size": 256, "moe_intermediate_size": 31}, 2, "31 columns of the ex"),
        ("llama", {"vocab_size": 256, "mlp_bias": True}, 2, "biases in their MLPs"),
        ("gpt-oss", {"vocab_size": 256}, 2, "attention sinks"),
        ("olmo2", {"vocab_size": 256}, 2, "families that were not tested with it"),
        ("llama", {}, 0, "is below 1"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(
    architecture: str,
    changes: dict[str, Any],
    ranks: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = checkpoints.make(architecture, tmp_path / "model", **changes)
    capsys.readouterr()  # transformers' progress
    given = ("build", "--model", model, "--out", tmp_path / "b", *LENGTHS)
    assert message in refused(capsys, *given, "--tensor-parallel", ranks)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("architecture", "flags", "message"),
    [
        ("llama", ("--tensor-parallel", "2"), "each rank has KV heads of its own"),
        ("deepseek-v3", (), "is for latent attention with --tensor-parallel"),
        ("deepseek-v3", ("--tensor-parallel", "2", "--batch", "3"), "3 batch slots"),
        (
            "deepseek-v3",
            ("--tensor-parallel", "2", "--batch", "4", "--decode-batches", "1"),
            "1 batch slots",
        ),
    ],
)
def test_batch_slots_that_ranks_cannot_share_are_refused(
    architecture: str,
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = checkpoints.make(architecture, tmp_path / "model", vocab_size=256)
    capsys.readouterr()  # transformers' progress
    given = ("build", "--model", model, "--out", tmp_path / "b", *LENGTHS, *flags)
    assert message in refused(capsys, *given, "--data-parallel-attention")


@pytest.mark.parametrize(
    "flags",
    [("--weights", "int4"), ("--baseline",), ("--link-weights",), ("--tokens-per-step", "2")],
)
def test_options_that_ranks_do_not_have_are_refused(
    flags: tuple[str, ...], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("build", "--model", checkpoint, "--out", tmp_path / "b", *LENGTHS, *flags)
    error = refused(capsys, *given, "--tensor-parallel", 2)
    assert error == f"error: {' '.join(flags)} is not supported with --tensor-parallel 2"
