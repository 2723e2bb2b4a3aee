"""Reads the published results, and writes their numbers as the pages do."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
STUDIES = ROOT / "tools" / "studies"

Row = dict[str, Any]


def report(study: str, name: str) -> Any:
    return json.loads((STUDIES / study / "results" / f"{name}.json").read_text())


def found(rows: Iterable[Row], **labels: Any) -> Row:
    """The row with these labels; an empty one if it was not measured."""
    return next((row for row in rows if labels.items() <= row.items()), {})


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def ms(row: Row) -> str:
    return f"{1e3 * row['seconds']['median']:.1f}" if row else ""


def share(value: float) -> str:
    """A share of prompts, as .85 or 1.00."""
    return f"{value:.2f}".removeprefix("0")


def nats(value: float) -> str:
    sign, bare = "-" * (value < 0), f"{abs(value):.3f}"
    return sign + bare.removeprefix("0")


def mean(values: Sequence[float]) -> str:
    """The mean, and its standard error in parentheses."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{nats(statistics.fmean(values))} ({nats(error)})"
