"""The command line, on the bundled checkpoint and at tiny sizes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.performance import turns
from tools.performance.__main__ import main
from tools.performance.turns import Case


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds are made once."""
    return tmp_path_factory.mktemp("work")


def test_quick_context_measures_draws_and_prints(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--quick", "--rounds", "1", "--work", str(work), "--threads", "1"]
    assert main(["context", *given]) == 0
    results = work / "quick" / "results"
    report = json.loads((results / "context.json").read_text())
    assert report["complete"] and report["command"].endswith("context --quick --rounds 1")
    assert str(work) not in (results / "context.json").read_text()
    cells = {(row["context"], row["kv_budget"]) for row in report["decode"]}
    assert cells == {(at, b) for at in (512, 1024, 2048) for b in (None, 128, 256)}
    assert all(row["seconds"]["samples"] == 2 and row["ratio"] for row in report["decode"])
    assert (results / "context.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["tables", *given]) == 0
    assert "| 2,048 |" in capsys.readouterr().out


def test_a_cut_run_keeps_what_it_measured(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(cases: Sequence[Case], rounds: int) -> Iterator[tuple[int, float]]:
        yield len(cases) - 1, 0.5
        raise KeyboardInterrupt

    monkeypatch.setattr(turns, "take_turns", cut_short)
    assert main(["context", "--quick", "--work", str(work), "--out", str(tmp_path)]) == 130
    report = json.loads((tmp_path / "context.json").read_text())
    assert not report["complete"]
    assert [row["seconds"]["median"] for row in report["decode"]] == [0.5]


def test_an_unknown_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["nothing"])
    assert left.value.code == 2
    assert "nothing" in capsys.readouterr().err


def test_what_cannot_be_done_is_an_error_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["context", "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "error: --rounds 0 is below 1\n\nhint: use 1 or more\n"
    assert main(["tables", "--write", str(tmp_path / "none.md")]) == 2
    assert "is not there" in capsys.readouterr().err
