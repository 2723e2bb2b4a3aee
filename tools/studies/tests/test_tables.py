"""The tables of docs/quality.md from the journals of evaluations."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from snapexport.measure.eval.records import JOURNAL, Answer, Continuation
from tools.studies.quality import real_model_tables

FULL = Continuation("full", 900, 100, "a:0", 4, 2.0, 2.0, 0.0, 1.0)
OWN = replace(FULL, system="snapstream", slots=8, nll=2.25, kl=0.5, agreement=0.75)
STREAMING = replace(OWN, system="streaming", nll=2.5)


def journal(folder: Path, *records: Answer | Continuation) -> str:
    folder.mkdir()
    lines = [{"fingerprint": "any"}, *map(asdict, records)]
    (folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_caches_of_two_evaluations_are_compared_passage_by_passage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    others = [replace(one, passage="b:0", nll=one.nll + 1) for one in (FULL, OWN, STREAMING)]
    first = journal(tmp_path / "first", FULL, OWN, others[0], others[1])
    second = journal(tmp_path / "second", FULL, STREAMING, others[0], others[2])
    real_model_tables.main([first, second])
    printed = capsys.readouterr().out
    assert "100 tokens: n = 2, the full cache's own 2.500 (.500)" in printed
    assert "| snapstream | .750 (.500) |" in printed
    assert printed.endswith("| snapstream | -.250 (.000) |\n\n")


def test_losses_against_another_builds_full_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = journal(tmp_path / "other", replace(FULL, nll=1.5))
    unknown = replace(OWN, passage="b:0")
    real_model_tables.main([journal(tmp_path / "a", FULL, OWN, unknown), "--against", other])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows == ["| 100 | full | 900 | 1 | .500 |", "| 100 | snapstream | 8 | 1 | .750 |", ""]


def test_answers_to_an_instruction_about_one_passage_stand_side_by_side(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full = Answer("full", 900, 100, "a:0", "What is it?", 4, 4, 4, "A text, whole.")
    small = replace(full, system="sage", slots=8, equal=1, text="A\nlist | of parts")
    long = replace(small, slots=16, text="word " * 100)
    real_model_tables.main([journal(tmp_path / "a", full, small, long)])
    printed = capsys.readouterr().out
    assert "**What is it?** The full cache: A text, whole.\n\n|  | 16 slots | 8 slots |" in printed
    assert "word [...] | A list \\| of parts |" in printed


def test_the_beginning_of_a_text_of_one_long_word_is_cut_inside_it() -> None:
    assert real_model_tables.beginning("1." * 100, 10) == "1.1.1.1.1. [...]"


def test_a_number_below_one_has_no_zero_before_its_point() -> None:
    values = {0.0384: ".038", -0.0052: "-.005", 1.5: "1.500", -1.25: "-1.250"}
    assert [real_model_tables.bare(one) for one in values] == list(values.values())
    assert real_model_tables.bare(0.011, "+") == "+.011"
    assert real_model_tables.mean([0.25]) == ".250"
