"""Tables of results, written into a page."""

import json
from pathlib import Path
from typing import Any

import pytest

from snapexport.measure.bench.results import FORMAT
from tools.studies.speed import page
from tools.studies.speed.experiments import EXPERIMENTS, context
from tools.studies.speed.record import read


def seconds(median: float) -> dict[str, float]:
    return {"samples": 5, "median": median, "q1": median, "q3": median}


def report(name: str, settings: dict[str, Any], **sections: Any) -> dict[str, Any]:
    machine = {
        "processor": "CPU",
        "cores": 2,
        "memory_bytes": 24 << 30,
        "load_average": [0.5],
        "versions": {"python": "3"},
    }
    rates = [{"bandwidth": seconds(30e9), "matmul": seconds(rate)} for rate in (120e9, 130e9)]
    return {
        "format": FORMAT,
        "experiment": name,
        "command": f"python -m tools.studies.speed {name}",
        "complete": True,
        "machine": machine,
        "settings": settings,
        "notes": [],
        "sections": {"rates": rates} | sections,
        "summary": context.summary(sections) if name == "context" else [],
    }


def contexts() -> dict[str, Any]:
    times = {(1024, None): 0.02, (2048, None): 0.04, (1024, 512): 0.01, (2048, 512): 0.0101}
    rows = [
        {"context": at, "kv_budget": budget, "seconds": seconds(one), "ratio": 2.0}
        for (at, budget), one in times.items()
    ]
    flat = [row | {"by_its_round": {"median": 100 * row["seconds"]["median"]}} for row in rows[2:]]
    settings = {"contexts": [1024, 2048], "kv_budgets": [512]}
    return report("context", settings, decode=rows, flat=flat)


def written(tmp_path: Path, found: dict[str, Any]) -> Path:
    path = tmp_path / f"{found['experiment']}.json"
    path.write_text(json.dumps(found))
    return path


def test_page_row_missing_from_a_cut_run_stays_empty(tmp_path: Path) -> None:
    cut = contexts() | {"complete": False}
    del cut["sections"]["decode"][-1]
    block = page.block(read(written(tmp_path, cut)))
    assert "| 2,048 | 40.0 | 2.00 |  |  |  |" in block
    assert "**The run was cut.**" in block


def test_a_page_keeps_everything_outside_its_marks(tmp_path: Path) -> None:
    text = tmp_path / "page.md"
    text.write_text("before\n<!-- context -->\nold\n<!-- end of context -->\nafter\n")
    written(tmp_path, contexts())
    assert page.write(text, tmp_path) == ["context"]
    once = text.read_text()
    assert once.startswith("before\n<!-- context -->\n| context |") and "old" not in once
    assert once.endswith("\n<!-- end of context -->\nafter\n")
    page.write(text, tmp_path)
    assert text.read_text() == once


def test_a_page_without_marks_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    text = tmp_path / "page.md"
    text.write_text("nothing\n")
    written(tmp_path, contexts())
    with pytest.raises(ValueError, match="no place for results"):
        page.write(text, tmp_path)
    assert text.read_text() == "nothing\n"


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - {"context"}))
def test_page_tables_of_a_run_without_measurements_have_no_rows(name: str, tmp_path: Path) -> None:
    settings = {"contexts": [8], "kv_budgets": [4], "prompts": [8], "systems": []}
    found = report(name, settings) | {"complete": False}
    assert "**The run was cut.**" in page.block(read(written(tmp_path, found)))


@pytest.mark.parametrize(
    ("name", "home"),
    [("request", "docs/speed.md"), ("request_qwen", "tools/studies/speed/details.md")],
)
def test_a_page_holds_whole_requests_as_measured(name: str, home: str) -> None:
    study = Path(page.__file__).parent
    table = page.block(read(study / "results" / f"{name}.json"))
    prose = (study.parents[2] / home).read_text()
    assert f"<!-- {name} -->\n{table}\n<!-- end of {name} -->" in prose


@pytest.mark.parametrize("name", ["cluster", "simulate"])
def test_the_page_of_disaggregation_holds_the_tables_of_its_results(name: str) -> None:
    study = Path(page.__file__).parent
    table = page.block(read(study / "results" / f"{name}.json"))
    assert table in (study / "disaggregation.md").read_text()
