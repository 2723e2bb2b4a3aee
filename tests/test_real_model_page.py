"""The tables of running text in docs/real-model.md are those of docs/results."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
CACHES = {
    "SnapStream": "snapstream",
    "streaming": "streaming",
    "`snapkv`": "snapkv",
    "`sage`": "sage",
}
COLUMNS = {"": "loss", "KL": "kl", "same token": "agreement"}
HEAD = re.compile(r"\| ([\d,]+) tokens, slots \| (.*) \|")
NUMBERS = re.compile(r"(\d*\.\d{3}) \((\.\d{3})\)")
ROW = re.compile(r"\| ([^|,]+?)(?:, ([^|]+?))? \| (.*) \|")


def published() -> dict[tuple[int, str, int], Any]:
    """The row of each length, cache and slots."""
    files = [DOCS / "results" / f"real_model_text{of}.json" for of in ("", "_4096", "_8000")]
    rows = [row for file in files for row in json.loads(file.read_text())["continuations"]]
    return {(row["length"], row["system"], row["slots"]): row for row in rows}


def tables() -> Iterator[tuple[int, str, str, dict[int, str]]]:
    """Of each row that is one cache's: length, cache, column, and the cells by slots."""
    page = (DOCS / "real-model.md").read_text()
    section = page.partition("## Running text")[2].partition("\n## ")[0]
    length, slots = 0, [0]
    for line in section.splitlines():
        if head := HEAD.fullmatch(line):
            length = int(head[1].replace(",", ""))
            slots = [int(one.replace(",", "")) for one in head[2].split(" | ")]
        elif (row := ROW.fullmatch(line)) and row[1] in CACHES:
            cells = dict(zip(slots, row[3].split(" | "), strict=True))
            yield length, CACHES[row[1]], COLUMNS[row[2] or ""], cells


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


def test_the_page_has_a_row_of_each_length_cache_and_column() -> None:
    rows = [(length, cache, column) for length, cache, column, _ in tables()]
    lengths = (1024, 2048, 4096, 8000)
    assert {(length, cache, "loss") for length in lengths for cache in CACHES.values()} <= set(rows)
    assert len(rows) == len(set(rows))
