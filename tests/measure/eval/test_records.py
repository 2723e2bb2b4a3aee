"""Summaries of answers (means, errors, depths), and the journal that keeps the answers."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from snapexport.errors import UserError
from snapexport.measure.eval.records import JOURNAL, Journal, Outcome, outcome_rows

ONE = Outcome("snapstream", 64, "aware", "vault", 256, 0, 0.0, 1.0, True, True, " a b", " a b")


def scored(*scores: float, depth: float = 0.0) -> list[Outcome]:
    return [replace(ONE, score=score, seed=i, depth=depth) for i, score in enumerate(scores)]


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    (row,) = outcome_rows(outcomes)
    return row


def test_a_summary_has_the_mean_and_its_standard_error() -> None:
    found = summary(scored(1.0, 0.0, 0.5, 0.5))
    assert (found["samples"], found["score"]) == (4, 0.5)
    # Squares of .5, .5, 0, 0 over n - 1, then over n.
    assert found["stderr"] == pytest.approx(math.sqrt(0.5 / 3 / 4), abs=5e-5)
    assert summary(scored(1.0, 1.0))["stderr"] == 0
    assert summary(scored(1.0))["stderr"] is None


def test_a_summary_counts_the_first_token_separately() -> None:
    outcomes = [ONE, replace(ONE, rest=False), replace(ONE, first=False, rest=False), ONE]
    found = summary(outcomes)
    assert (found["first_token"], found["after_first"]) == (0.75, 0.5)


def test_results_have_a_row_for_each_cache_mode_task_and_length() -> None:
    outcomes = [
        replace(one, **changes)
        for changes in ({}, {"slots": 32}, {"mode": "late"}, {"task": "kv"}, {"length": 512})
        for one in (*scored(1.0, 0.5), *scored(0.0, 0.0, depth=0.75))
    ]
    rows = outcome_rows(outcomes)
    assert len(rows) == 5
    for row in rows:
        assert (row["samples"], row["score"]) == (4, 0.375)
        assert row["by_depth"] == {"0.0": 0.75, "0.75": 0.0}
    assert [row["slots"] for row in rows] == [64, 32, 64, 64, 64]
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.parametrize(("score", "counts"), [(0.49, False), (0.5, True)])
def test_a_task_counts_where_the_full_cache_can_do_it(score: float, counts: bool) -> None:
    own = [replace(ONE, mode=mode, score=1.0) for mode in ("aware", "agnostic")]
    full = [replace(own[0], system="full", score=score), replace(own[1], system="full")]
    found = {(row["system"], row["mode"]): row["counts"] for row in outcome_rows([*own, *full])}
    assert found["snapstream", "aware"] is found["full", "aware"] is counts
    assert found["snapstream", "agnostic"] is found["full", "agnostic"] is True


def lines(directory: Path) -> list[object]:
    return [json.loads(line) for line in (directory / JOURNAL).read_text().splitlines()]


def test_the_journal_writes_each_outcome_at_once(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    journal = Journal(out, "me")
    answers = journal.record(scored(1.0, 0.0))
    assert next(answers) == scored(1.0)[0]
    assert lines(out) == [{"fingerprint": "me"}, asdict(ONE)]
    assert list(answers) == scored(1.0, 0.0)[1:]
    assert Journal(out, "me").records == scored(1.0, 0.0)


def test_a_truncated_journal_line_is_run_again(tmp_path: Path) -> None:
    list(Journal(tmp_path, "me").record(scored(1.0, 0.0, 1.0)))
    file = tmp_path / JOURNAL
    whole = file.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1])):
        file.write_bytes(whole[:-cut])
        assert Journal(tmp_path, "me").records == scored(1.0, 0.0)
        assert whole.startswith(file.read_bytes())
    list(Journal(tmp_path, "me").record(scored(1.0, 0.0, 1.0)[2:]))
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b"1\n",
        b"no json\n",
        b"\xff\xfe\n",
        b'{"fingerprint": "other"}\n',
        b'{"fingerprint": "me"}',
        b'{"fingerprint": "me"}\n{"unknown": 1}\n',
        b'{"fingerprint": "me"}\n[1]\n',
        b'{"fingerprint": "me"}\nno json\n',
    ],
)
def test_the_journal_of_another_evaluation_is_refused_and_kept(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / JOURNAL).write_bytes(content)
    with pytest.raises(UserError, match="holds another evaluation"):
        Journal(tmp_path, "me")
    assert (tmp_path / JOURNAL).read_bytes() == content


def test_a_journal_refuses_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    for place in (tmp_path, tmp_path / "note"):
        with pytest.raises(UserError, match="exists, and holds no evaluation"):
            Journal(place, "me")
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
    (tmp_path / "empty").mkdir()
    assert Journal(tmp_path / "empty", "me").records == []
