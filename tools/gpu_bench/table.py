"""The results as tables for a terminal, or for a page of documentation."""

from collections.abc import Iterator, Sequence
from typing import Any

from .results import Results, Row


def tables(results: Results) -> Iterator[str]:
    """Those of the stages that were run."""
    if rows := results.rows("context"):
        yield _decode("(a) decode by context, one slot", rows)
    if rows := results.rows("equal-memory"):
        yield _decode("(b) the same bytes of decode caches", rows)
    yield from results.get("left_out") or ()
    if rows := results.rows("overhead"):
        yield _overhead(rows)


def _decode(title: str, rows: list[Row]) -> str:
    headings = "context", "cache", "slots", "step, ms", "floor, ms", "of floor", "tokens/s"
    keys = "milliseconds", "floor_milliseconds", "of_floor", "tokens_per_second"
    ordered = sorted(rows, key=lambda row: (row["context"], row["cache"]))
    return _table(
        title,
        headings,
        [
            [f"{row['context']:,}", row["cache"], row["slots"], *(row[k] for k in keys)]
            for row in ordered
        ],
    )


def _overhead(rows: list[Row]) -> str:
    headings = "context", "prefill, ms", "hand-over, ms", "of prefill"
    keys = "prefill_milliseconds", "hand_over_milliseconds"
    ordered = sorted(rows, key=lambda row: int(row["context"]))
    return _table(
        "(c) what compression adds to prefill",
        headings,
        [
            [f"{row['context']:,}", *(row[k] for k in keys), f"{row['share']:.2%}"]
            for row in ordered
        ],
    )


def _table(title: str, headings: Sequence[str], rows: list[list[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join([title, "", *("| " + " | ".join(map(str, line)) + " |" for line in lines)])
