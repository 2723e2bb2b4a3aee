"""Markdown from JSON, and into a page."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.performance import equal_memory, overhead, peers, tables
from tools.performance.__main__ import EXPERIMENTS


def seconds(median: float) -> dict[str, float]:
    return {"samples": 5, "median": median, "q1": median, "q3": median}


def report(name: str, **sections: Any) -> dict[str, Any]:
    machine = {
        "processor": "CPU",
        "cores": 2,
        "memory_bytes": 24 << 30,
        "load_average": [0.5],
        "versions": {"python": "3"},
    }
    rates = [{"bandwidth": seconds(30e9), "matmul": seconds(rate)} for rate in (120e9, 130e9)]
    command = f"python -m tools.performance {name}"
    common = {"machine": machine, "rates": rates, "command": command, "complete": True}
    return common | sections


def context() -> dict[str, Any]:
    times = {(1024, None): 0.02, (2048, None): 0.04, (1024, 512): 0.01, (2048, 512): 0.0101}
    rows = [
        {"context": at, "kv_budget": budget, "seconds": seconds(one), "ratio": 2.0}
        for (at, budget), one in times.items()
    ]
    options = {"contexts": [1024, 2048], "kv_budgets": [512]}
    flat = [row | {"by_its_round": {"median": 100 * row["seconds"]["median"]}} for row in rows[2:]]
    return report("context", decode=rows, flat=flat, options=options)


def test_a_block_has_the_table_what_it_says_and_what_it_was_measured_on(tmp_path: Path) -> None:
    (tmp_path / "context.json").write_text(json.dumps(context()))
    assert tables.block("context", tmp_path).splitlines() == [
        "| context | full, ms | x floor | 512 slots, ms | x floor | full : 512 |",
        "|---|---:|---:|---:|---:|---:|",
        "| 1,024 | 20.0 | 2.00 | 10.0 | 2.00 | 2.00 |",
        "| 2,048 | 40.0 | 2.00 | 10.1 | 2.00 | 3.96 |",
        "",
        "- 512 slots, 1,024 to 2,048: steps differ by 1.0% at most",
        "",
        "`python -m tools.performance context`: CPU, 2 cores, 24 GiB, load before 0.5; python 3.",
        "Probed: 30 GB/s read, 120 - 130 GFLOP/s. Each time is the median of 5.",
    ]


def test_a_row_that_a_cut_run_lacks_stays_empty(tmp_path: Path) -> None:
    cut = context() | {"complete": False}
    del cut["decode"][-1]
    (tmp_path / "context.json").write_text(json.dumps(cut))
    block = tables.block("context", tmp_path)
    assert "| 2,048 | 40.0 | 2.00 |  |  |  |" in block
    assert "**The run was cut.**" in block


def test_a_page_keeps_all_but_its_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- context -->\nold\n<!-- end of context -->\nafter\n")
    (tmp_path / "context.json").write_text(json.dumps(context()))
    assert tables.write(page, tmp_path) == ["context"]
    once = page.read_text()
    assert once.startswith("before\n<!-- context -->\n| context |") and "old" not in once
    assert once.endswith("\n<!-- end of context -->\nafter\n")
    tables.write(page, tmp_path)
    assert page.read_text() == once


def test_a_page_without_the_marks_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    (tmp_path / "context.json").write_text(json.dumps(context()))
    with pytest.raises(ValueError, match="context"):
        tables.write(page, tmp_path)
    assert page.read_text() == "nothing\n"


def test_throughput_is_held_against_the_full_cache_of_the_same_prompts() -> None:
    decode = [
        {"context": 16, "cache": "full", "batch": 2, "seconds": seconds(0.5)},
        {"context": 16, "cache": "1/4", "batch": 8, "seconds": seconds(0.4)},
    ]
    found = equal_memory.summary({"decode": decode})
    assert [row["tokens_per_second"] for row in found] == [4.0, 20.0]
    assert [row["times_full"] for row in found] == [1.0, 5.0]


def test_the_share_is_of_prefill_that_was_run_or_integrated() -> None:
    chunks = [
        {"past": past, "chunk": 10, "seconds": seconds(1 + past / 10)} for past in (0, 10, 20)
    ]
    ran = {"prompt": 20, "seconds": seconds(4.0)}
    hand_overs = [
        {"prompt": length, "L_max": 40, "slots": 8, "seconds": seconds(0.5)} for length in (20, 40)
    ]
    short, long = overhead.summary({"prefill": [ran, *chunks], "hand_over": hand_overs})
    assert short["prefilled"] and short["share"] == 0.125
    assert short["integrated_off_by"] == pytest.approx(3.5 / 4 - 1)
    # chunks of 1, 2, 3 and 4 s
    assert not long["prefilled"] and long["prefill_seconds"] == pytest.approx(10.5)


def test_peers_are_held_against_snapstream_with_weights_of_as_many_bits() -> None:
    rows = [("snapexport fp32, SnapStream", 32, 2.0), ("snapexport int4, SnapStream", 4, 1.0)]
    rows += [("other fp32", 32, 3.0), ("other int4", 4, 3.0)]
    decode = [
        {"peer": peer, "bits": bits, "context": 8, "seconds": seconds(one)}
        for peer, bits, one in rows
    ]
    assert [row["times_ours"] for row in peers.summary({"decode": decode})] == [1, 1, 1.5, 3]


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - {"context", "host"}))
def test_a_run_that_was_cut_at_once_has_tables_without_rows(name: str, tmp_path: Path) -> None:
    options = {"contexts": [8], "kv_budgets": [4], "prompts": [8]}
    (tmp_path / f"{name}.json").write_text(
        json.dumps(report(name, options=options) | {"complete": False})
    )
    assert "**The run was cut.**" in tables.block(name, tmp_path)


def test_the_page_has_a_place_and_a_picture_for_every_experiment() -> None:
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    for name in EXPERIMENTS:
        assert page.count(f"<!-- {name} -->\n") == page.count(f"\n<!-- end of {name} -->") == 1
        assert f"(results/performance/{name}.png)" in page
