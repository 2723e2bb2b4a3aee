"""calibrate: budgets by AdaKV's rule, of a file that build takes."""

import json
from pathlib import Path

import pytest
import torch

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.methods.head_budgets.groups import HeadBudget
from snapexport.methods.head_budgets.measure import SAFEGUARD, share_budget
from snapexport.vault import CHECKPOINT
from tests.builds import build

TEXT = "The river was quiet. " * 300


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("calibrate") / "b"
    return build(CHECKPOINT, out, L_max=512, kv_budget=64, batch=1, prefill_chunk=128)


def test_heads_share_what_their_votes_win_and_a_safeguard() -> None:
    votes = torch.tensor([[0.9, 0.8, 0.7, 0.1], [0.6, 0.2, 0.3, 0.0]])
    # Of the 4 highest votes head 0 has three: 0.9, 0.8 and 0.7.
    want = [(1 - SAFEGUARD) * 3 + SAFEGUARD * 2, (1 - SAFEGUARD) * 1 + SAFEGUARD * 2]
    assert share_budget(votes, 2) == pytest.approx(want)
    assert sum(share_budget(votes, 2)) == pytest.approx(4)


def test_build_takes_what_calibrate_writes(
    vault: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "heads.json"
    text.write_text(TEXT)
    command = ["calibrate", str(vault.directory), "--documents", str(text), "--out", str(out)]
    assert main([*command, "--passages", "2", "--length", "256", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tokens"] == 256 and len(report["passages"]) == 2
    budget = HeadBudget.read(out)
    for row, shape in zip(budget.layers, vault.manifest.geometry.layers, strict=True):
        assert sum(row) == pytest.approx(shape.K * budget.kv_heads, rel=0.01)
        assert min(row) >= SAFEGUARD * shape.K - 0.01
    options = {"L_max": 512, "kv_budget": 64, "batch": 1, "prefill_chunk": 128}
    made = build(CHECKPOINT, tmp_path / "b", head_budget=out, **options)
    assert made.manifest.geometry.slots.head_groups


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--passages", "0"], "--passages 0 is below 1"),
        (["--length", "64"], "passages of 64 tokens show nothing"),
        (["--length", "513"], "a prompt has up to 512"),
        (["--documents", "nowhere.txt"], "cannot read nowhere.txt"),
        (["--out", "/nowhere/heads.json"], "cannot write /nowhere/heads.json"),
    ],
)
def test_calibrate_refuses_texts_without_information(
    flags: list[str],
    message: str,
    vault: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    documents = [] if "--documents" in flags else ["--documents", str(text)]
    out = ["--out", str(tmp_path / "heads.json")]
    assert main(["calibrate", str(vault.directory), *documents, *out, *flags]) == 2
    assert message in capsys.readouterr().err


def test_calibrate_refuses_a_build_that_does_not_vote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = build(CHECKPOINT, tmp_path / "b", L_max=128, policy="full", batch=1)
    out = ["--out", str(tmp_path / "heads.json"), "--documents", str(tmp_path)]
    assert main(["calibrate", str(made.directory), *out]) == 2
    assert "has no vote to measure" in capsys.readouterr().err
