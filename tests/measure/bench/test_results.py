"""The results file: its format, and interrupted runs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapexport.measure.bench.results import FORMAT, Results
from snapexport.measure.bench.turns import Case, singles


@dataclass(frozen=True)
class Settings:
    sizes: tuple[int, ...] = (1, 2)


def results(path: Path, settings: Settings | None = None) -> Results:
    return Results("test", "a command", settings or Settings(), 1, path=path)


def case(size: int, timed: Callable[[], float]) -> Case:
    return Case("decode", {"size": size, "batch": None}, timed, warm=False)


def test_results_file_holds_measurements_machine_and_settings(tmp_path: Path) -> None:
    found = results(tmp_path / "test.json")
    found.measure("decode", singles([case(1, lambda: 0.5)]), rounds=3)
    report = json.loads((tmp_path / "test.json").read_text())
    assert (report["format"], report["experiment"], report["device"]) == (FORMAT, "test", "cpu")
    assert report["settings"] == {"sizes": [1, 2]} and report["machine"]["versions"]["numpy"]
    (row,) = report["sections"]["decode"]
    assert row["size"] == 1 and row["seconds"]["samples"] == 3
    assert not report["complete"]


def test_interrupted_results_keep_the_samples_until_then(tmp_path: Path) -> None:
    def cut() -> float:
        raise KeyboardInterrupt

    found = results(tmp_path / "test.json")
    with pytest.raises(KeyboardInterrupt):
        found.measure("decode", singles([case(1, lambda: 0.5), case(2, cut)]), rounds=1)
    (row,) = json.loads((tmp_path / "test.json").read_text())["sections"]["decode"]
    assert row["size"] == 1 and row["seconds"]["median"] == 0.5
