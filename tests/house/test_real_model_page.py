"""The tables of running text in docs/real-model.md are those of the studies' results."""

import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "tools/studies/quality/results"
CACHES = {
    "SnapStream": "snapstream",
    "streaming": "streaming",
    "`snapkv`": "snapkv",
    "`sage`": "sage",
}
COLUMNS = {"": "loss", ", KL": "kl", ", same token": "agreement"}
HEAD = re.compile(r"\| ([\d,]+) tokens, slots \| (.*) \|")
NUMBERS = re.compile(r"([+-]?\d*\.\d{3}) \((\.\d{3})\)")
ROW = re.compile(rf"\| ({'|'.join(CACHES)})([^|]*?) \| (.*) \|")


def published() -> dict[tuple[int, str, int], Any]:
    """The row of each length, cache and slots."""
    files = [RESULTS / f"real_model_text{of}.json" for of in ("", "_4096", "_8000")]
    rows = [row for file in files for row in json.loads(file.read_text())["continuations"]]
    return {(row["length"], row["system"], row["slots"]): row for row in rows}


def lines() -> Iterator[tuple[int, str, str, dict[int, str]]]:
    """Length, cache, what follows the cache's name, and the cells by slots, of each row."""
    page = (DOCS / "real-model.md").read_text()
    section = page.partition("## Running text")[2].partition("\n## ")[0]
    length, slots = 0, [0]
    for line in section.splitlines():
        if head := HEAD.fullmatch(line):
            length = int(head[1].replace(",", ""))
            slots = [int(one.replace(",", "")) for one in head[2].split(" | ")]
        elif row := ROW.fullmatch(line):
            yield length, CACHES[row[1]], row[2], dict(zip(slots, row[3].split(" | "), strict=True))


def tables() -> Iterator[tuple[int, str, str, dict[int, str]]]:
    """Of each row that is one cache's: length, cache, column, and the cells by slots."""
    for length, cache, rest, cells in lines():
        if rest in COLUMNS:
            yield length, cache, COLUMNS[rest], cells


def compared() -> Iterator[tuple[int, str, dict[int, str]]]:
    """Of each row that compares a cache with streaming: length, cache, and the cells by slots."""
    for length, cache, rest, cells in lines():
        if rest == " less streaming":
            yield length, cache, cells


@pytest.mark.parametrize(("length", "cache", "column", "cells"), list(tables()))
def test_a_row_of_the_page_is_the_published_result(
    length: int, cache: str, column: str, cells: dict[int, str]
) -> None:
    rows = published()
    for slots, cell in cells.items():
        numbers = NUMBERS.fullmatch(cell)
        assert numbers, cell
        row = rows[length, cache, slots]
        # Both are rounded: the page to three decimals, the file to five.
        assert float(numbers[1]) == pytest.approx(row[column], abs=0.00051)
        assert float(numbers[2]) == pytest.approx(row[f"{column}_stderr"], abs=0.00051)


@pytest.mark.parametrize(("length", "cache", "cells"), list(compared()))
def test_a_row_less_streaming_is_the_difference_passage_by_passage(
    length: int, cache: str, cells: dict[int, str]
) -> None:
    rows = published()
    for slots, cell in cells.items():
        numbers = NUMBERS.fullmatch(cell)
        assert numbers, cell
        own, other = (rows[length, of, slots]["losses"] for of in (cache, "streaming"))
        differences = [one - of for one, of in zip(own, other, strict=True)]
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        assert float(numbers[1]) == pytest.approx(statistics.fmean(differences), abs=0.00051)
        assert float(numbers[2]) == pytest.approx(error, abs=0.00051)


def test_the_page_has_a_row_of_each_length_cache_and_column() -> None:
    rows = [(length, cache, column) for length, cache, column, _ in tables()]
    lengths = (1024, 2048, 4096, 8000)
    assert {(length, cache, "loss") for length in lengths for cache in CACHES.values()} <= set(rows)
    assert len(rows) == len(set(rows))
    assert {length for length, _, _ in compared()} == set(lengths)
