"""`diff` refuses comparisons that it cannot make, before it runs a graph."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from tests.oracle import checkpoints
from tests.refused import refused


@pytest.fixture
def own_build(tiny_build: Build, tmp_path: Path) -> Build:
    """A copy to spoil."""
    shutil.copytree(tiny_build.directory, tmp_path / "copy.build")
    return Build.open(tmp_path / "copy.build")


def test_diff_runs_inside_the_build_directory(
    capsys: pytest.CaptureFixture[str], own_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_build.directory)
    assert main(["diff", ".", "--lengths", "5", "--steps", "1"]) == 0
    assert "equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "0"], "--steps 0 is not between"),
        (["--lengths", "64"], "64 prompt tokens and 16 steps don't fit"),
        (["--lengths", "0"], "0 prompt tokens"),
        (["--prompt", "x", "--lengths", "5"], "--lengths is for random prompts"),
        (["--prompt", "x", "--seed", "0"], "--seed is for random prompts"),
        (["--model", "/nonexistent"], "no such directory"),
    ],
)
def test_diff_refuses_flags_that_make_no_sequence(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, flags: list[str], message: str
) -> None:
    assert message in refused(capsys, "diff", tiny_build.directory, *flags)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("qwen2", {}, "its architecture is Qwen2ForCausalLM"),
        ("llama", {"vocab_size": 300}, "its vocab_size is 300, the build's is 257"),
        ("llama", {"num_hidden_layers": 1}, "its num_hidden_layers is 1, the build's is 2"),
    ],
)
def test_diff_refuses_a_reference_with_another_config(
    capsys: pytest.CaptureFixture[str],
    tiny_build: Build,
    tmp_path: Path,
    architecture: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    other = checkpoints.make(architecture, tmp_path / "other", **changes)
    assert message in refused(capsys, "diff", tiny_build.directory, "--model", other)


def test_diff_refuses_a_reference_whose_weights_do_not_fit(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    other = checkpoints.make("llama", tmp_path / "other", vocab_size=300)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": 257}))
    assert "don't fit its config.json" in refused(
        capsys, "diff", tiny_build.directory, "--model", other
    )


def test_diff_of_a_build_without_config_needs_the_checkpoint(
    capsys: pytest.CaptureFixture[str], own_build: Build, checkpoint: Path
) -> None:
    (own_build.directory / "config.json").unlink()
    assert "has no config.json" in refused(capsys, "diff", own_build.directory)
    flags = ["--model", str(checkpoint), "--lengths", "5"]
    assert main(["diff", str(own_build.directory), *flags]) == 0


def test_a_bf16_build_is_made_with_a_note_that_no_cpu_runs_it(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    message, made = "a bf16 build is not supported on the CPU", str(tmp_path / "bf16")
    flags = ["--L-max", "64", "--dtype", "bf16", "--batch", "1", "--baseline"]
    assert main(["build", "--model", str(checkpoint), "--out", made, *flags]) == 0
    assert f"note: {message}" in capsys.readouterr().err
    assert message in refused(capsys, "diff", made)
