"""calibrate: budgets over all layers and heads, in a file that build takes."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.methods.head_budgets.groups import HeadBudget
from snapexport.methods.head_budgets.measure import choose
from snapexport.vault import CHECKPOINT
from tests.builds import build

OPTIONS: Any = {"L_max": 512, "kv_budget": 64, "batch": 1, "prefill_chunk": 128}
TEXT = "The river was quiet. " * 300


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("calibrate") / "b"
    return build(CHECKPOINT, out, baseline=True, **OPTIONS)


def test_the_best_positions_of_all_layers_are_shared_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    scores = {layer: rng.random((2, 40)).round(2) for layer in (0, 2, 3)}
    places = list(product(range(2), range(40)))
    every = [(-one[h, p], n, h, p) for n, one in scores.items() for h, p in places]
    want = {n: [0, 0] for n in scores}
    for _, layer, head, _ in sorted(every)[:50]:
        want[layer][head] += 1
    assert choose(scores, 50) == want


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
    kept = vault.manifest.geometry
    assert sum(map(sum, budget.layers)) == pytest.approx(
        sum(shape.K * budget.kv_heads for shape in kept.layers), rel=0.02
    )
    made = build(CHECKPOINT, tmp_path / "b", head_budget=out, **OPTIONS)
    slots = made.manifest.geometry.slots
    held = slots.heads_held(made.manifest.model.kv_heads)
    sizes = zip(held, made.manifest.geometry.layers, strict=True)
    assert slots.head_groups and len(set(map(sum, budget.layers))) > 1
    assert sum(heads * shape.K for heads, shape in sizes) == sum(
        shape.K * budget.kv_heads for shape in kept.layers
    )


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
    out = ["--out", str(tmp_path / "heads.json"), "--documents", __file__]
    assert main(["calibrate", str(made.directory), *out]) == 2
    assert "has no vote to measure" in capsys.readouterr().err


def test_a_build_measures_head_budgets_itself(tmp_path: Path) -> None:
    made = build(CHECKPOINT, tmp_path / "b", calibrate=(), **OPTIONS)
    files = {path.name for path in made.directory.iterdir()}
    assert made.manifest.geometry.slots.head_groups
    assert not {name for name in files if "trace" in name} and "compress.onnx" in files
