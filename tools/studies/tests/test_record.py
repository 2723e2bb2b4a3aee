"""Resumed results, and files of another format."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapexport.errors import UserError
from snapexport.measure.bench.turns import Case, singles
from tools.studies.speed.record import Results, read, tail


@dataclass(frozen=True)
class Settings:
    sizes: tuple[int, ...] = (1, 2)


def results(path: Path, settings: Settings | None = None) -> Results:
    return Results("test", "a command", settings or Settings(), 1, path=path)


def test_resumed_results_have_the_rows_of_the_file(tmp_path: Path) -> None:
    first = results(tmp_path / "test.json")
    case = Case("decode", {"size": 1, "batch": None}, lambda: 0.5)
    first.measure("decode", singles([case]), rounds=1)
    again = results(tmp_path / "test.json")
    again.resume()
    assert again.has("decode", {"size": 1, "batch": None})
    assert not again.has("decode", {"size": 2, "batch": None})
    assert read(tmp_path / "test.json")["sections"]["never measured"] == []


def test_results_of_other_settings_or_another_gpu_are_not_mixed(tmp_path: Path) -> None:
    results(tmp_path / "test.json").add("decode", {"size": 1})
    with pytest.raises(UserError, match="rows of other settings"):
        results(tmp_path / "test.json", Settings((3,))).resume()
    other = results(tmp_path / "test.json")
    other.machine["gpu"] = {"name": "NVIDIA H200"}
    with pytest.raises(UserError, match="rows of other GPU"):
        other.resume()


def test_results_file_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "test.json"
    for text in ("no JSON", "[]", json.dumps({"format": 0})):
        file.write_text(text)
        with pytest.raises(UserError, match=r"test\.json"):
            read(file)


def test_a_tail_has_median_90th_and_99th_percentile() -> None:
    assert tail(range(101)) == {"samples": 101, "median": 50, "p90": 90, "p99": 99}
