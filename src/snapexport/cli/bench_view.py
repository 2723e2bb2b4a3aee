"""Shows a bench's report in a terminal: a line about the machine, then its tables."""

from collections import defaultdict
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from snapexport.cli.console import DESCRIPTION, OUT, _OneLine
from snapexport.contract.memory import spelled
from snapexport.measure.bench import tables

Row = dict[str, Any]


class BenchProgress(_OneLine):
    """A bar that counts measurements, with the time that is left."""

    def __init__(self) -> None:
        columns = DESCRIPTION, BarColumn(), MofNCompleteColumn()
        super().__init__(*columns, TimeRemainingColumn(), total=None)

    def update(self, what: str, done: int, total: int) -> None:
        """So many of a part's measurements are done."""
        self._bars.update(self._line, description=what, completed=done, total=total)


def print_report(report: Row) -> None:
    """A table for each thing that was measured."""
    from snapexport.measure.bench import load, speed

    machine, settings = report["machine"], report["settings"]
    engine = settings.get("backend", "onnxruntime")
    version, precision = machine["versions"].get(engine, "?"), settings.get("precision")
    OUT.print(
        f"{machine['processor']}, {machine['cores']} cores, {spelled(machine['memory_bytes'])}, "
        f"{engine} {version}{f' in {precision}' if precision else ''}, "
        f"load before: {machine['load_average'][0]}"
    )
    if machine["load_average"][0] > machine["cores"] / 2:
        OUT.print(
            "other processes were busy before: trust ratios, and not too much", style="yellow"
        )
    if not report["complete"]:
        OUT.print("interrupted: this is what was measured until then", style="yellow")
    _print_rates(report["sections"].get("rates", []))
    report = report | {"sections": defaultdict(list, report["sections"])}
    for table in (load if report["experiment"] == "load" else speed).tables(report):
        _print(table)


def _print_rates(rows: list[Row]) -> None:
    units = {"bandwidth": "GB/s", "matmul": "GFLOP/s"}
    rates = [
        f"{row[probe]['median'] / 1e9:.1f} {unit}"
        for row in rows
        for probe, unit in units.items()
        if probe in row
    ]
    if rates:
        OUT.print(f"probed for the roofline: {', '.join(rates)}\n")


def _print(table: tables.Table) -> None:
    if not table.rows and not table.notes:
        return
    shown = Table(title=table.title, title_justify="left", title_style="bold", box=None)
    shown.pad_edge = False
    for column, head in enumerate(table.heads):
        justify = "left" if table.is_text(column) else "right"
        shown.add_column(head, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in table.rows:
        shown.add_row(*row)
    if table.rows:
        OUT.print(shown)
    for note in table.notes:
        OUT.print(note, style="dim")
    OUT.print()
