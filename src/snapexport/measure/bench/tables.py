"""Tables of results: one description, shown in a terminal or as Markdown. Knows no experiment."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from snapexport.contract.memory import in_mib
from snapexport.measure.bench.turns import Row

_TEXT = {
    "",
    *("system", "cache", "by", "target", "update", "sampling", "setting"),
    *("model", "deployment", "row", "bound by"),
}
"""Heads of columns that hold words; the others hold numbers, aligned to the right."""

Column = str | Callable[[Row], str]
"""A format string of a row's values, or a function of the row."""


@dataclass(frozen=True)
class Table:
    """notes: lines below the rows."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        title: str,
        rows: Iterable[Row],
        columns: Mapping[str, Column],
        notes: Sequence[str] = (),
    ) -> "Table":
        """A line for each row. columns: by their heads."""
        cells = [[_cell(column, row) for column in columns.values()] for row in rows]
        return cls(title, list(columns), cells, notes)

    def is_text(self, column: int) -> bool:
        """Whether a column is aligned to the left."""
        return self.heads[column] in _TEXT


def _cell(column: Column, row: Row) -> str:
    return column.format(**row) if isinstance(column, str) else column(row)


def of_roofline(row: Row | None) -> str:
    """Spell the ratio to the roofline; empty where there is none."""
    return f"{row['ratio']:.2f}" if row and row["ratio"] else ""


def timing(head: str) -> dict[str, Column]:
    """Columns of the median under `head`, its middle half and its roofline."""
    return {
        head: lambda row: ms(row["seconds"]["median"]),
        "middle half": lambda row: f"{ms(row['seconds']['q1'])} - {ms(row['seconds']['q3'])}",
        "roofline, ms": lambda row: (
            f"{ms(row['roofline']['seconds'])} {row['roofline']['bound']}"
            if row["roofline"]
            else "-"
        ),
        "x of roofline": lambda row: of_roofline(row) if row["roofline"] else "-",
    }


def ms(seconds: float | None) -> str:
    """Milliseconds."""
    return "-" if seconds is None else number(1e3 * seconds)


def number(value: float) -> str:
    """Four digits, and never an exponent for what is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def mib(nbytes: int) -> str:
    """Without a unit: the column's head has it."""
    return f"{in_mib(nbytes):,.0f}"
