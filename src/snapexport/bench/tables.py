"""Tables of results: one description, shown in a terminal or as Markdown.

An experiment makes `Table`s of its report. Knows no experiment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from snapexport.bench.turns import Row
from snapexport.contract.bytes import in_mib

_TEXT = {"", "system", "cache", "by", "target", "update", "sampling", "setting"}
"""Heads of columns that hold words; the others hold numbers, and stand to the right."""

_WIDE = 0.2
"""Of the median."""

TIMING = ("middle half", "roofline, ms", "x of roofline")


@dataclass(frozen=True)
class Table:
    """notes: lines below the rows."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default=())

    def is_text(self, column: int) -> bool:
        """Whether a column stands to the left."""
        return self.heads[column] in _TEXT


def markdown(table: Table) -> Iterator[str]:
    """Lines of Markdown."""
    if table.rows:
        marks = ["---" if table.is_text(n) else "---:" for n in range(len(table.heads))]
        yield f"| {' | '.join(table.heads)} |"
        yield f"|{'|'.join(marks)}|"
        for row in table.rows:
            yield f"| {' | '.join(row)} |"
    if table.notes:
        yield ""
        yield from table.notes


def spread_ms(row: Row | None) -> str:
    """The median in milliseconds; with the middle half where that is wide."""
    if not row:
        return ""
    low, middle, high = (1e3 * row["seconds"][name] for name in ("q1", "median", "q3"))
    wide = high - low > _WIDE * middle
    return f"{middle:.1f} ({low:.1f} - {high:.1f})" if wide else f"{middle:.1f}"


def of_roofline(row: Row | None) -> str:
    """How many times the roofline."""
    return f"{row['ratio']:.2f}" if row and row["ratio"] else ""


def timing(row: Row) -> list[str]:
    """The median, and the columns of TIMING."""
    seconds, least = row["seconds"], row["roofline"]
    bounds = f"{ms(seconds['q1'])} - {ms(seconds['q3'])}"
    if least is None:
        return [ms(seconds["median"]), bounds, "-", "-"]
    bound = f"{ms(least['seconds'])} {least['bound']}"
    return [ms(seconds["median"]), bounds, bound, of_roofline(row)]


def ms(seconds: float | None) -> str:
    """Milliseconds."""
    return "-" if seconds is None else number(1e3 * seconds)


def number(value: float) -> str:
    """Four digits, and never an exponent for what is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def mib(nbytes: int) -> str:
    """Without a unit: the column's head has it."""
    return f"{in_mib(nbytes):,.0f}"


def ratio(one: Row | None, other: Row | None) -> str:
    """Of two rows' medians."""
    if not one or not other:
        return ""
    return f"{one['seconds']['median'] / other['seconds']['median']:.2f}"
