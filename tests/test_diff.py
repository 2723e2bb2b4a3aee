"""diff: equal where nothing was dropped, measured where something was, and broken graphs found."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.accuracy.measures import Distance
from snapexport.commands.app import main
from snapexport.contract.build_directory import Build


def diff(capsys: pytest.CaptureFixture[str], build: Build, out: Path, *flags: str) -> Any:
    status = main(["diff", str(build.directory), "--out", str(out), "--json", *flags])
    assert status == 0
    return json.loads(capsys.readouterr().out)


def test_what_was_dropped_is_all_that_differs(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    found = diff(capsys, tiny_build, tmp_path, "--steps", "4", "--lengths", "12", "60")
    rows = found["differences"]
    assert {row["reference"] for row in rows} == {"transformers", "full cache"}
    for row in rows:
        compressed = (row["runner"], row["output"], row["prompt_length"]) == (
            "snapstream",
            "decode.logits",
            60,
        )
        assert row["lossless"] is not compressed
        if compressed:
            assert row["distance"]["max_abs_error"] > 1e-2
        else:
            assert row["passed"]
            assert row["distance"]["max_abs_error"] < 1e-3
            assert row["distance"]["top1_agreement"] == 1
            assert row["distance"]["kl_divergence"] < 1e-6


def test_the_plain_commands_repeat_it(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    commands = diff(capsys, tiny_build, tmp_path, "--steps", "2")["commands"]
    lines = [line for line in Path(commands).read_text().splitlines() if "polygraphy" in line]
    statuses = {}
    for line in lines:
        program, *arguments = shlex.split(line)
        polygraphy = Path(sys.executable).with_name(program)
        done = subprocess.run([polygraphy, *arguments], cwd=tmp_path, capture_output=True)
        statuses[arguments[4].split(":")[1]] = done.returncode
    assert statuses == {"baseline_prefill": 0, "baseline_decode": 0, "prefill": 0, "decode": 1}


def test_graphs_of_another_model_are_found_out(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    from tests.oracle import checkpoints

    other = checkpoints.make("llama", tmp_path / "other", seed=9)
    flags = ["--model", str(other), "--steps", "2", "--out", str(tmp_path / "d")]
    assert main(["diff", str(tiny_build.directory), *flags]) == 1
    assert "DIFFERS" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--steps", "0"], ["--lengths", "64"], ["--lengths", "0"]])
def test_sequences_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, flags: list[str]
) -> None:
    assert main(["diff", str(tiny_build.directory), *flags]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_distance_is_what_its_names_say() -> None:
    one, other = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.25, 0.75], [0.9, 0.1]])
    distance = Distance.between(one.astype(np.float32), other.astype(np.float32))
    assert distance.max_abs_error == pytest.approx(np.log(2), rel=1e-6)
    assert distance.top1_agreement == 0.5
    assert distance.kl_divergence == pytest.approx(0.5 * 0.5 * np.log(4 / 3), rel=1e-6)
