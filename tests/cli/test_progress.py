"""Progress: lines where no terminal is, and a time left that counts what later parts cost."""

import pytest

from snapexport.cli import progress
from snapexport.cli.progress import AnswerProgress, BuildProgress, Pace, PrefillProgress


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is printed by two stages and two answers."""
    with BuildProgress() as build:
        build.stage("tracing")
        build.written(10**9)
        build.stage("surgery")
    with AnswerProgress(2) as answers:
        answers.advance()
        answers.advance()
    printed = capsys.readouterr()
    assert printed.out == ""
    return [line.partition(", about")[0] for line in printed.err.splitlines()]


@pytest.fixture(params=["auto", "plain", "none"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(progress, "_mode", request.param)
    return str(request.param)


def test_lines_are_printed_where_they_are_wanted(mode: str, lines: list[str]) -> None:
    every = ["tracing", "surgery", "1 of 2 answers", "2 of 2 answers"]
    assert lines == (every if mode == "plain" else [])


@pytest.mark.parametrize("mode", ["auto"], indirect=True)
def test_long_work_is_not_silent_without_a_terminal(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    with BuildProgress() as build:
        build.stage("placing the weights")
        build.written(10**9)
    shown = capsys.readouterr().err
    assert shown == "placing the weights\nplacing the weights: 1.00 GB written\n"


@pytest.mark.parametrize("later", [0.0, 0.3])
def test_time_left_counts_what_later_chunks_cost(later: float) -> None:
    """Each chunk takes a second, and `later` more for each chunk before it."""
    pace, now = Pace(), 0.0
    for chunk in range(5):
        pace.add(chunk, now)
        now += 1 + later * chunk
    left = sum(1 + later * chunk for chunk in range(4, 20))
    assert pace.remaining(20) == pytest.approx(left, rel=1e-6)


def test_time_left_follows_only_from_chunks_that_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = PrefillProgress(100)
    monkeypatch.setattr(progress, "CACHED_SECONDS", float("inf"))
    for held in (10, 20, 30):  # by the prompt cache
        shown.show_prefilled(held)
    assert shown._pace.remaining(100) is None
    monkeypatch.setattr(progress, "CACHED_SECONDS", 0)
    shown.show_prefilled(60)
    assert shown._pace.remaining(100) is not None
