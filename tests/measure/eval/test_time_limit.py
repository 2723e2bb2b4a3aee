"""A limit of time leaves out samples, says what they would take, and keeps the tasks in turn."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapexport.cli.app import main
from snapexport.measure.eval import run
from snapexport.measure.eval.requests import Cell
from snapexport.measure.eval.run import OutOfTimeError, TimeLimit
from snapexport.measure.options import EvalOptions
from tests.measure.eval import builds
from tests.refused import refused

TASKS = "one", "two"


def cells(length: int = 100) -> dict[Cell, str]:
    found = [(task, depth) for task in TASKS for depth in (0.25, 0.75)]
    return {Cell(task, length, depth, seed): task for seed, (task, depth) in enumerate(found)}


def run_within(seconds: float, of_a_cell: float = 60.0) -> tuple[TimeLimit, list[Cell]]:
    """The limit and the cells that were run, after ten seconds of loading."""
    ticks = [0.0]
    limit = TimeLimit(seconds, lambda: ticks[0])
    ticks[0] += 10

    def timed() -> Iterator[Cell]:
        for cell, work in limit.within(cells()):
            assert work == cell.task
            ticks[0] += of_a_cell
            yield cell

    return limit, list(timed())


@pytest.mark.parametrize(
    ("seconds", "fit"), [(0, 1), (60, 1), (129, 1), (131, 2), (250, 4), (math.inf, 4)]
)
def test_samples_that_would_end_too_late_are_left_out(seconds: float, fit: int) -> None:
    limit, done = run_within(seconds)
    assert len(done) == fit and len(limit.left_out) == 4 - fit
    assert limit.seconds_left_out == pytest.approx(60 * (4 - fit))


def test_a_sample_is_cut_when_the_time_is_up() -> None:
    ticks = [0.0]
    limit = TimeLimit(60, lambda: ticks[0])
    for number, _ in enumerate(limit.within(cells())):
        ticks[0] += 50
        limit.check(0.9) if number == 0 else None
        ticks[0] += 50
        with pytest.raises(OutOfTimeError):
            limit.check(0.25)
    assert number == 0 and len(limit.left_out) == 4
    assert limit.seconds_left_out == pytest.approx(4 * 100 / 0.25)


def test_every_task_has_its_first_sample_before_one_has_a_second() -> None:
    _, done = run_within(math.inf)
    assert [(cell.task, cell.depth) for cell in done] == [
        ("one", 0.25),
        ("two", 0.25),
        ("one", 0.75),
        ("two", 0.75),
    ]


@pytest.mark.parametrize(
    ("chosen", "minutes"),
    [
        ({}, 10),
        ({"chat": False, "threads": 1, "seed": 3}, 10),
        ({"minutes": 3}, 3),
        ({"minutes": 0}, math.inf),
        ({"lengths": (4096,)}, math.inf),
        ({"documents": (Path("texts"),)}, math.inf),
        ({"samples": 2, "minutes": 1}, 1),
    ],
)
def test_only_a_run_without_choices_has_a_limit_by_default(
    chosen: dict[str, Any], minutes: float
) -> None:
    assert EvalOptions(**chosen).seconds == 60 * minutes


def test_minutes_are_refused_where_no_task_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(builds.vault().directory)
    command = ["eval", directory, "--documents", directory, "--minutes", "5"]
    assert "--minutes 5 limits tasks, but none are run" in refused(capsys, *command)


def test_eval_says_what_was_left_out_and_goes_on_from_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ["eval", str(builds.vault().directory), "--threads", "1", "--json"]
    command += ["--out", str(tmp_path / "out"), "--depths", "0.2", "0.8", "--modes", "aware"]
    with monkeypatch.context() as changed:
        changed.setattr(run, "TimeLimit", lambda _: TimeLimit(0))
        assert main(command) == 2  # cut within the first sample
        assert "up within the first sample, which takes about" in capsys.readouterr().err
        changed.setattr(TimeLimit, "check", lambda *_: None)
        assert main(command) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["left_out"]["samples"] == 1 and not report["complete"]
    assert {row["samples"] for row in report["results"]} == {1}
    assert "note: the time was up: 1 more sample would take about" in printed.err
    assert "(--minutes 0, and go on from here)" in printed.err
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["complete"] and report["left_out"] == {"samples": 0, "seconds": 0}
    assert {row["samples"] for row in report["results"]} == {2}
