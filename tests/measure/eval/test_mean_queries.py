"""calibrate --mean-queries: a file that build takes, whose caches eval compares."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.methods.calibrated.spec import VOTER
from tests.builds import build
from tests.measure.eval.test_head_budgets import CHECKPOINT, TEXT

OPTIONS: Any = {"L_max": 512, "kv_budget": 64, "batch": 1, "prefill_chunk": 128, "baseline": True}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(CHECKPOINT, tmp_path_factory.mktemp("queries") / "b", **OPTIONS)


def calibrated(plain: Build, folder: Path, *flags: str) -> int:
    (folder / "text.txt").write_text(TEXT)
    documents, out = ("--documents", str(folder / "text.txt")), ("--out", str(folder / "q.json"))
    return main(["calibrate", str(plain.directory), "--mean-queries", *documents, *out, *flags])


def evaluated(directory: Path, policy: str) -> int:
    choices = ["--tasks", "vault", "--lengths", "256", "--modes", "agnostic", "--policies", policy]
    return main(["eval", str(directory), *choices, "--samples", "1", "--json"])


def test_build_takes_what_calibrate_writes_and_eval_compares_it(
    plain: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrated(plain, tmp_path, "--passages", "2", "--length", "256", "--json") == 0
    assert json.loads(capsys.readouterr().out)["queries_of_a_head"] == 256
    made = build(CHECKPOINT, tmp_path / "b", mean_queries=tmp_path / "q.json", **OPTIONS)
    assert made.manifest.geometry.vote == replace(
        plain.manifest.geometry.vote, L_obs=1, voter=VOTER
    )
    (entry,) = [entry for name, entry in made.manifest.graphs.items() if name == "compress"]
    assert not [spec.name for spec in entry.inputs if spec.name.startswith("query_window")]
    assert main(["inspect", str(made.directory)]) == 0
    assert "the mean query of texts" in capsys.readouterr().out
    for policy in ("snapstream", "snapstream:vote_queries=prompt,L_obs=4"):
        assert evaluated(made.directory, policy) == 0
        (system,) = json.loads(capsys.readouterr().out)["systems"]
        assert system["vote_queries"] == ("prompt" if ":" in policy else "calibrated")


def test_a_build_without_mean_queries_has_no_such_caches(
    plain: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated(plain.directory, "snapstream:vote_queries=calibrated") == 2
    assert "hold no mean queries" in capsys.readouterr().err
    assert evaluated(plain.directory, "snapstream:vote_queries=calibrated,L_obs=4") == 2
    assert "--L-obs 4 is not supported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--length", "0"], "--length 0 is not the length of a prompt, which has 1 to 512 tokens"),
        (
            ["--length", "513"],
            "--length 513 is not the length of a prompt, which has 1 to 512 tokens",
        ),
    ],
)
def test_calibrate_refuses_lengths_that_no_prompt_has(
    plain: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert calibrated(plain, tmp_path, *flags) == 2
    assert message in capsys.readouterr().err
