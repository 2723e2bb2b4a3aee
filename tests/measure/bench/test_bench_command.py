"""`snapexport bench`: its output and files, its interruption, and its refusals."""

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli import app
from snapexport.cli.bench import BenchProgress
from snapexport.cli.console import ERR
from snapexport.cli.signals import end_on_signals
from snapexport.contract.build_directory import Build
from snapexport.measure import plots
from snapexport.measure.bench import probes, speed
from snapexport.measure.bench.probes import bandwidth, matmul, openvino_matmul
from snapexport.measure.plots import STYLE
from tests.oracle.cases import Case, build_of

FAST = ["--repeat", "2", "--decode-steps", "2", "--threads", "1", "--batches", "2", "1"]
USED = {"empty": 10, "loaded": 20, "peak": 30, "anonymous_loaded": 5, "anonymous": 6}


@pytest.fixture(autouse=True)
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small probes, and coarse plots."""
    monkeypatch.setattr(probes, "bandwidth", partial(bandwidth, nbytes=1 << 12))
    monkeypatch.setattr(probes, "matmul", partial(matmul, rows=16))
    monkeypatch.setitem(STYLE, "figure.dpi", 40)


@pytest.fixture
def fixed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed numbers in place of a process that measures memory."""
    monkeypatch.setattr(speed, "measure_memory", lambda *_: USED)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots: tests/measure/test_plots.py draws them."""
    monkeypatch.setattr(plots, "draw", lambda *_: [])


def run(build: Build, *flags: object) -> int:
    return app.main(["bench", str(build.directory), *map(str, flags)])


def last_line(capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    """The last line that is printed, as JSON."""
    printed = capsys.readouterr().out
    return printed, json.loads(printed.splitlines()[-1])


@pytest.mark.usefixtures("fixed_memory", "no_plots")
def test_bench_on_a_terminal_prints_the_expected_time_and_prints_json_only_if_asked(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny_build: Build,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(ERR, "_force_terminal", True)
    always = "--baseline", "--contexts", 16, "--out", tmp_path / "out", *FAST
    for asked, flags in ((False, []), (True, ["--json"])):
        assert run(tiny_build, *always, *flags) == 0
        printed = capsys.readouterr()
        expected = "snapstream and full, prompts of 16 tokens, 2 rounds: about 0 s, "
        assert expected in printed.err
        assert ('"format"' in printed.out) is asked


@pytest.mark.usefixtures("fixed_memory")
def test_bench_measures_prints_and_writes_results(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run(tiny_build, "--baseline", "--contexts", 16, 40, "--out", out, *FAST) == 0
    printed, report = capsys.readouterr().out, json.loads((out / "results.json").read_text())
    pictures = [f"{n}_by_context.{k}" for n in ("decode", "prefill") for k in ("png", "svg")]
    assert sorted(path.name for path in out.iterdir()) == sorted([*pictures, "results.json"])
    assert report["complete"] and report["machine"]["cores"] >= 1
    cells = [(row["context"], row["system"]) for row in report["sections"]["prefill"]]
    assert sorted(cells) == [(n, name) for n in (16, 40) for name in ("full", "snapstream")]
    assert len(report["sections"]["decode"]) == 8
    assert {row["seconds"]["samples"] for row in report["sections"]["decode"]} == {4}
    assert [row["context"] for row in report["summary"]] == [16, 40]
    assert all(row["vote_seconds"] > 0 for row in report["summary"])
    assert all(
        row["ratio"] > 0 for row in report["sections"]["prefill"] + report["sections"]["decode"]
    )
    assert [row["system"] for row in report["sections"]["memory"]] == ["snapstream", "full"]
    for heading in ("prefill", "decode", "compression", "memory", "x of roofline"):
        assert heading in printed


@pytest.mark.usefixtures("fixed_memory", "no_plots")
def test_bench_json_is_one_line_and_results_are_beside_the_build(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    build = Build.open(shutil.copytree(tiny_build.directory, tmp_path / "tiny.build"))
    for _ in range(2):  # the second one takes the place of the first
        assert run(build, "--json", "--contexts", 16, *FAST) == 0
        printed, report = last_line(capsys)
        assert len(printed.splitlines()) == 1
    assert json.loads((tmp_path / "tiny.build.bench" / "results.json").read_text()) == report


@pytest.mark.usefixtures("fixed_memory", "no_plots")
def test_bench_in_openvino_multiplies_there_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(probes, "openvino_matmul", partial(openvino_matmul, rows=16))
    monkeypatch.setattr(probes, "matmul", None)
    flags = [
        "--json",
        "--backend",
        "openvino",
        "--precision",
        "f32",
        "--out",
        tmp_path / "out",
        *FAST[:-3],
    ]
    assert run(build_of(Case(target="portable", batch=2)), *flags) == 0
    assert {row["batch"] for row in last_line(capsys)[1]["sections"]["decode"]} == {1, 2}


@pytest.fixture
def exit_signals() -> Iterator[None]:
    """The signal handlers that `snapexport` sets when it starts."""
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    end_on_signals()
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("fixed_memory", "no_plots", "exit_signals")
def test_bench_ctrl_c_keeps_the_samples_until_then(
    capsys: pytest.CaptureFixture[str],
    tiny_build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def update(progress: BenchProgress, what: str, done: int, total: int) -> None:
        if (what, done) == ("speed", 4 + 4 + 1 + 1):  # both probes, a prompt, a step
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(BenchProgress, "update", update)
    with pytest.raises(SystemExit) as left:
        run(tiny_build, "--contexts", 16, "--out", tmp_path / "out", *FAST)
    assert left.value.code == 130
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert not report["complete"]
    assert "interrupted: this is what was measured until then" in printed
    assert [row["seconds"]["samples"] for row in report["sections"]["prefill"]] == [1]
    assert [row["seconds"]["samples"] for row in report["sections"]["decode"]] == [1]
    assert "compress" not in report["sections"]


@pytest.mark.usefixtures("fixed_memory", "no_plots")
def test_bench_progress_counts_to_its_end(
    tiny_build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int, int]] = []
    monkeypatch.setattr(BenchProgress, "update", lambda _, *given: steps.append(given))
    run(tiny_build, "--baseline", "--contexts", 16, 24, "--out", tmp_path / "out", *FAST)
    speed = [(done, total) for what, done, total in steps if what == "speed"]
    assert [done for done, _ in speed] == list(range(speed[0][1] + 1))
    assert {total for _, total in speed} == {speed[0][1]}


REFUSED: dict[str, tuple[list[object], str]] = {
    "too many slots": (["--batches", 5], "--batches 5 is more than the 4 slots"),
    "a server": (["--server", "http://127.0.0.1:1"], "unrecognized arguments: --server"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_bench_input_is_an_error_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path, name: str
) -> None:
    flags, message = REFUSED[name]
    assert run(tiny_build, *flags, "--out", tmp_path / "out") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}") and "\n\nhint: " in captured.err
    assert list(tmp_path.iterdir()) == []


def test_bench_refuses_a_directory_of_other_files(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("mine")
    assert run(tiny_build, "--out", tmp_path) == 2
    assert "holds no results of a bench" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.usefixtures("fixed_memory")
def test_without_matplotlib_bench_writes_results_and_names_the_extra(
    capsys: pytest.CaptureFixture[str],
    tiny_build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "snapexport.measure.plots")
    monkeypatch.delattr("snapexport.measure.plots")
    assert run(tiny_build, "--contexts", 16, "--out", tmp_path / "out", *FAST) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]
    assert "no plots: they need snapexport[eval]" in capsys.readouterr().err
