"""The results file: its format, interrupted runs, and resumed ones."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapexport.errors import UserError
from snapexport.measure.bench.results import FORMAT, Results, read
from snapexport.measure.bench.turns import Case, alone


@dataclass(frozen=True)
class Settings:
    sizes: tuple[int, ...] = (1, 2)


def results(path: Path, settings: Settings | None = None) -> Results:
    return Results("test", "a command", settings or Settings(), 1, path=path)


def case(size: int, timed: Callable[[], float]) -> Case:
    return Case("decode", {"size": size, "batch": None}, timed, warm=False)


def test_results_file_holds_measurements_machine_and_settings(tmp_path: Path) -> None:
    found = results(tmp_path / "test.json")
    found.measure("decode", alone([case(1, lambda: 0.5)]), rounds=3)
    report = read(tmp_path / "test.json")
    assert (report["format"], report["experiment"], report["device"]) == (FORMAT, "test", "cpu")
    assert report["settings"] == {"sizes": [1, 2]} and report["machine"]["versions"]["numpy"]
    (row,) = report["sections"]["decode"]
    assert row["size"] == 1 and row["seconds"]["samples"] == 3
    assert report["sections"]["never measured"] == [] and not report["complete"]


def test_interrupted_results_keep_the_samples_until_then(tmp_path: Path) -> None:
    def cut() -> float:
        raise KeyboardInterrupt

    found = results(tmp_path / "test.json")
    with pytest.raises(KeyboardInterrupt):
        found.measure("decode", alone([case(1, lambda: 0.5), case(2, cut)]), rounds=1)
    (row,) = read(tmp_path / "test.json")["sections"]["decode"]
    assert row["size"] == 1 and row["seconds"]["median"] == 0.5


def test_resumed_results_have_the_rows_of_the_file(tmp_path: Path) -> None:
    first = results(tmp_path / "test.json")
    first.measure("decode", alone([case(1, lambda: 0.5)]), rounds=1)
    again = results(tmp_path / "test.json")
    again.resume()
    assert again.has("decode", {"size": 1, "batch": None})
    assert not again.has("decode", {"size": 2, "batch": None})


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
