"""Sums up records: a row for each group of them, and means with their standard errors."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Record = TypeVar("Record")

CACHE = "system", "slots", "length"


def rows(
    records: Iterable[Record],
    fields: Sequence[str],
    summary: Callable[[list[Record]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """A row for each combination of the fields' values, in the order of its first record."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(getattr(record, field) for field in fields), []).append(record)
    return [dict(zip(fields, key, strict=True)) | summary(group) for key, group in groups.items()]


def mean(values: Iterable[float], digits: int = 5) -> float:
    """At least one value's, rounded."""
    return round(statistics.fmean(values), digits)


def stderr(values: Sequence[float], digits: int = 5) -> float | None:
    """The standard error of the mean; None for one value."""
    if len(values) < 2:
        return None
    return round(statistics.stdev(values) / math.sqrt(len(values)), digits)
