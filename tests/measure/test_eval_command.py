"""`snapexport eval`: what it prints and leaves, how it is interrupted, and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from snapexport.cli.app import main
from snapexport.cli.progress import AnswerProgress
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.measure.eval.grid import make_grid
from snapexport.measure.eval.records import JOURNAL
from snapexport.measure.options import EvalOptions
from tests.measure.eval import builds
from tests.patience import PATIENCE
from tests.refused import refused

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {
    "tasks": ("vault",),
    "lengths": (128, 384),
    "depths": (0.0, 0.5),
    "samples": 10,
    "policies": ("full", "snapstream", "streaming"),
    "modes": ("aware",),
    "threads": 1,
}
FEW = OPTIONS | {"samples": 1, "depths": 0.0, "hit_samples": 0}


def flags(**options: Any) -> list[str]:
    words = []
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        words += ["--" + name.replace("_", "-"), *map(str, values)]
    return words


@pytest.fixture
def build() -> Path:
    return builds.vault().directory


def evaluate(build: Path, *more: object, **options: Any) -> int:
    return main(["eval", str(build), *flags(**options), *map(str, more)])


def answers(out: Path) -> int:
    """Whole lines of answers so far."""
    journal = out / JOURNAL
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.is_file() else 0


def kill_midway(build: Path, out: Path) -> None:
    """Run eval in another process, and kill it after five more answers."""
    before = answers(out)
    command = [sys.executable, "-m", "snapexport", "eval", str(build), "--out", str(out)]
    process = subprocess.Popen([*command, *flags(**OPTIONS)])
    while answers(out) < before + 5 and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    assert process.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert before + 5 <= answers(out) < 120


def beside(build: Path) -> list[str]:
    """Names of the other entries of the build's folder."""
    return sorted(path.name for path in build.parent.iterdir() if path != build)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_eval_keeps_and_prints_its_answers(
    capsys: pytest.CaptureFixture[str],
    build: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    status: int,
) -> None:
    """Ctrl-C, or a scheduler's request: after the second answer."""
    out, seen = tmp_path / "out", []

    def advance(_: AnswerProgress) -> None:
        seen.append(beside(build))
        if len(seen) == 2:
            signal.raise_signal(number)

    monkeypatch.setattr(AnswerProgress, "advance", advance)
    with pytest.raises(SystemExit) as left:
        evaluate(build, "--out", out, **OPTIONS)
    assert left.value.code == status
    assert [len(scratch) for scratch in seen] == [1, 1]
    assert beside(build) == []
    assert sorted(path.name for path in out.iterdir()) == ["report.json", JOURNAL]
    assert answers(out) == 2
    assert not json.loads((out / "report.json").read_text())["complete"]
    printed = capsys.readouterr()
    assert "question in the prompt" in printed.out and "1.000" in printed.out
    assert "note: interrupted, so that this is a part of the evaluation" in printed.err


def test_a_killed_eval_resumes_and_gives_the_same_report(
    capsys: pytest.CaptureFixture[str], build: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    kill_midway(build, out)
    assert len(beside(build)) == 1  # the next run removes it, since its lock is free
    with (out / JOURNAL).open("a") as journal:
        journal.write('{"system": "snap')
    known = (out / JOURNAL).read_text().splitlines()[:-1]
    assert evaluate(build, "--out", out, "--json", **OPTIONS) == 0
    assert beside(build) == []
    assert (out / JOURNAL).read_text().splitlines()[: len(known)] == known
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "report.json").read_text())
    assert report == builds.report_of(make_grid(Build.open(build), EvalOptions(**OPTIONS)))
    assert all(row["samples"] == 20 for row in report["results"])


def test_eval_does_not_resume_another_evaluation(
    capsys: pytest.CaptureFixture[str], build: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert evaluate(build, "--out", out, **FEW) == 0
    capsys.readouterr()
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    for change in ({"seed": 1}, {"lengths": 200}, {"policies": "full"}, {"budgets": 40}):
        assert "holds another evaluation" in refused(
            capsys, "eval", build, "--out", out, *flags(**FEW | change)
        )
    assert {path.name: path.read_bytes() for path in out.iterdir()} == written
    # What changes no answer is no other evaluation.
    assert evaluate(build, "--out", out, **FEW | {"threads": 2, "hit_samples": 1}) == 0


def test_eval_prints_tables_or_one_json_object(
    capsys: pytest.CaptureFixture[str], build: Path
) -> None:
    options = FEW | {"hit_samples": 1}
    assert evaluate(build, "--json", **options) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and err == ""
    report = json.loads(out)
    assert evaluate(build, **options) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no progress bar without a terminal
    for row in report["results"]:
        assert f"{row['score']:.3f}" in out
    for word in ("128 tokens", "384 tokens", "question in the prompt", "snapstream", "hit rate"):
        assert word in out
    assert report["options"]["lengths"] == [128, 384]
    by_name = {one["system"]: one for one in report["systems"]}
    assert by_name["snapstream"]["L_sink_L_recent_K"] == [4, 30, 30]
    assert by_name["streaming"]["L_sink_L_recent_K"] == [4, 60, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": 601}, "a task of 601 tokens is longer than the build's --L-max 600"),
        ({"lengths": 20, "budgets": 8}, "a sample of the task 'vault' does not fit into 20 tokens"),
        ({"lengths": (37, 300)}, "a sample of the task 'vault' does not fit into 37 tokens"),
        ({"lengths": 0}, "--lengths 0 is below 1"),
        ({"lengths": (64, 64)}, "--lengths has 64 twice"),
        ({"tasks": "chess"}, "--tasks 'chess' is not known"),
        ({"tasks": ("vault", "vault")}, "--tasks has vault twice"),
        ({"modes": "early"}, "--modes 'early' is not known"),
        ({"policies": "snapstream:L_obs=129,L_recent=200", "budgets": 300}, "prefill chunk of 128"),
        ({"budgets": 0}, "--budgets 0 is below 1"),
        ({"budgets": 4}, "'snapstream' in 4 slots: --budgets 4 is below 5"),
        ({"budgets": (64, 384)}, "a budget of 384 slots holds whole prompts of 384 tokens"),
        ({"depths": 2}, "--depths 2.0 is not a share"),
        ({"depths": "nan"}, "--depths nan is not a share"),
        ({"samples": 0}, "--samples 0 is below 1"),
        ({"hit_samples": -1}, "--hit-samples -1 is below 0"),
        ({"seed": -1}, "--seed -1 is below 0"),
        ({"seed": 10**9}, "trained on prompts of seeds such as 1000000000"),
        ({"threads": 0}, "--threads 0 is below 1"),
    ],
)
def test_eval_refuses_impossible_options(
    capsys: pytest.CaptureFixture[str],
    build: Path,
    tmp_path: Path,
    options: dict[str, Any],
    message: str,
) -> None:
    assert message in refused(
        capsys, "eval", build, "--out", tmp_path / "out", *flags(**FEW | options)
    )
    assert list(tmp_path.iterdir()) == []
    assert beside(build) == []


def edited(build: Path, **changes: Any) -> None:
    """Change fields of the manifest."""
    manifest = Build.open(build).manifest
    manifest.model_copy(update=changes).write(build)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no build": (shutil.rmtree, "is not a build directory"),
    "policy full": (
        lambda b: edited(b, traces={}, geometry=CacheGeometry.full(600, 2)),
        "the manifest lists an unexpected graph compress",
    ),
    "bf16": (lambda b: edited(b, dtype="bf16"), "its geometry wants bfloat16"),
    "no tokenizer": (lambda b: (b / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "a broken tokenizer": (
        lambda b: (b / "tokenizer.json").write_text("{"),
        "tokenizer.json cannot be read",
    ),
    "a tokenizer without words": (
        lambda b: Tokenizer(WordLevel({"?": 0}, "?")).save(str(b / "tokenizer.json")),
        "the tokenizer can't spell the task 'vault'",
    ),
    "a broken trace": (
        lambda b: (b / "decode.trace.onnx").write_bytes(b""),
        "was changed after the build",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_eval_refuses_a_build_that_it_cannot_run(
    capsys: pytest.CaptureFixture[str], build: Path, tmp_path: Path, name: str
) -> None:
    damage, message = DAMAGE[name]
    copy = Path(shutil.copytree(build, tmp_path / "copy", copy_function=os.link))
    for file in ("manifest.json", "manifest.json.sha256", "tokenizer.json"):
        unlinked(copy / file)
    unlinked(copy / "decode.trace.onnx")
    damage(copy)
    assert message in refused(capsys, "eval", copy, "--out", tmp_path / "out", *flags(**FEW))
    assert {path.name for path in tmp_path.iterdir()} <= {"copy"}


def test_a_build_without_baseline_is_scored_by_itself(
    capsys: pytest.CaptureFixture[str], build: Path, tmp_path: Path
) -> None:
    """Its scores are those that it has beside other caches."""
    copy, out = Path(shutil.copytree(build, tmp_path / "copy")), tmp_path / "out"
    edited(copy, traces={})
    few = {name: value for name, value in FEW.items() if name not in ("policies", "lengths")}
    more = {"lengths": 200, "documents": builds.__file__, "passages": 1, "continuation": 4}
    reports = []
    for one in (build, copy):
        assert evaluate(one, "--json", *(["--out", out] if one == copy else []), **few | more) == 0
        reports.append(json.loads(capsys.readouterr().out))
    beside, alone = reports
    (score,), (text,) = alone["results"], alone["continuations"]
    assert not alone["compared"] and score in beside["results"]
    (same,) = (row for row in beside["continuations"] if row["system"] == "snapstream")
    assert "kl" not in text and text == {name: same[name] for name in text}
    for flag, value in (("policies", "full"), ("budgets", 32), ("hit_samples", 1)):
        assert "has no baseline" in refused(capsys, "eval", copy, *flags(**few | {flag: value}))


def unlinked(file: Path) -> None:
    """A file of its own in a copy that is made of links."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)


def test_eval_keeps_directories_of_other_files(
    capsys: pytest.CaptureFixture[str], build: Path, tmp_path: Path
) -> None:
    (tmp_path / "note").write_text("mine")
    for place in (tmp_path, tmp_path / "note", build):
        assert "exists, and holds no evaluation" in refused(
            capsys, "eval", build, "--out", place, *flags(**FEW)
        )
    assert "Not a directory" in refused(
        capsys, "eval", build, "--out", tmp_path / "note" / "out", *flags(**FEW)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
    assert beside(build) == []


def test_eval_refuses_to_copy_weights(
    capsys: pytest.CaptureFixture[str],
    build: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        error = refused(capsys, "eval", build, "--out", tmp_path / "out", *flags(**FEW))
    assert "the weights cannot be linked" in error
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        error = refused(capsys, "eval", build, "--out", tmp_path / "out", *flags(**FEW))
    assert f"{build.parent} cannot be written" in error
    assert beside(build) == list(tmp_path.iterdir()) == []


def test_eval_without_matplotlib_prints_tables_but_refuses_out(build: Path, tmp_path: Path) -> None:
    def python(*more: str) -> "subprocess.CompletedProcess[str]":
        argv = ["eval", str(build), *flags(**FEW | {"lengths": 128}), *more]
        code = (
            "import sys; sys.modules['matplotlib'] = None\n"
            f"from snapexport.cli.app import main; sys.exit(main({argv!r}))"
        )
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    refused = python("--out", str(tmp_path / "out"))
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: the package 'matplotlib' is not installed\n\nhint: ")
    assert "snapexport[eval]" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    done = python()
    assert (done.returncode, done.stderr) == (0, "") and "snapstream" in done.stdout
