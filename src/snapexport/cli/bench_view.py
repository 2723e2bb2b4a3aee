"""A bench's report as tables: the floor beside each number, neighbours to be compared."""

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from snapexport.cli.console import OUT, _OneLine
from snapexport.contract.bytes import spelled

Row = dict[str, Any]


class BenchProgress(_OneLine):
    """A bar that counts measurements, with the time that is left."""

    def __init__(self, total: int) -> None:
        columns = TextColumn("measured"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        super().__init__(*columns, total=total)

    def advance(self) -> None:
        """One more."""
        self._bars.advance(self._line)


def print_report(report: Row) -> None:
    """A table for each thing that was measured, after a line about the machine."""
    machine = report["machine"]
    OUT.print(
        f"{machine['processor']}, {machine['cores']} cores, {spelled(machine['memory_bytes'])}, "
        f"onnxruntime {machine['versions'].get('onnxruntime', '?')}, "
        f"load before: {machine['load_average'][0]}"
    )
    if machine["load_average"][0] > machine["cores"] / 2:
        OUT.print("[yellow]other processes were busy before: trust ratios, and not too much[/]")
    if not report["complete"]:
        OUT.print("[yellow]interrupted: this is what was measured until then[/]")
    if "load" in report:
        _print_load(report)
    else:
        _print_speed(report)


def _print_speed(report: Row) -> None:
    _print_rates(report["rates"])
    _print_prefill(report["prefill"])
    _print_decode(report["decode"])
    _print_hand_over(report)
    _print_memory(report["memory"])


def _print_rates(rates: Row) -> None:
    units = {"bytes_per_second": "GB/s", "operations_per_second": "GFLOP/s"}
    told = [f"{rates[key]['median'] / 1e9:.1f} {units[key]}" for key in units if key in rates]
    if told:
        OUT.print(f"probed for the floors: {', '.join(told)}\n")


def _print_prefill(rows: list[Row]) -> None:
    table = _table("prefill", "prompt", "cache", "first token, ms", *_TIMING, "tokens/s")
    for row in sorted(rows, key=lambda row: row["context"]):
        table.add_row(
            str(row["context"]), row["contender"], *_timing(row), _number(row["tokens_per_second"])
        )
    _print(table)


def _print_decode(rows: list[Row]) -> None:
    table = _table("decode", "context", "slots", "cache", "step, ms", *_TIMING, "tokens/s")
    for row in sorted(rows, key=lambda row: (row["context"], row["batch"])):
        table.add_row(
            str(row["context"]),
            str(row["batch"]),
            row["contender"],
            *_timing(row),
            _number(row["tokens_per_second"]),
        )
    _print(table)


def _print_hand_over(report: Row) -> None:
    if report["hand_over_note"]:
        OUT.print(f"[dim]hand-over: {report['hand_over_note']}[/]\n")
        return
    headings = "prompt", "hand-over, ms", *_TIMING, "of prefill", "vote, ms", "moving, ms"
    table = _table("compression, after a prompt's last chunk", *headings)
    for row in sorted(report["hand_over"], key=lambda row: row["context"]):
        table.add_row(
            str(row["context"]),
            *_timing(row),
            f"{row['share_of_prefill']:.2%}",
            _ms(row["vote_seconds"]),
            _ms(row["moving_seconds"]),
        )
    _print(table)


def _print_memory(rows: list[Row]) -> None:
    headings = "cache", "loaded", "peak", "floor", "x floor", "own, at the end", "caches"
    table = _table("memory", *headings)
    for row in rows:
        used = row["bytes"]
        table.add_row(
            row["contender"],
            spelled(used["loaded"]),
            spelled(used["peak"]),
            spelled(row["floor"]["bytes"]) if row["floor"] else "-",
            f"{row['ratio']:.2f}" if row["ratio"] else "-",
            spelled(used["anonymous"]),
            spelled(row["cache_bytes"]) if row["cache_bytes"] is not None else "-",
        )
    _print(table)


def _print_load(report: Row) -> None:
    options = report["options"]
    OUT.print(
        f"prompts of {options['prompt_tokens']} tokens, {options['max_tokens']} to be answered, "
        f"{report['batch']} slots\n"
    )
    headings = "tokens/s", "first token, ms", "between, ms", "failed", "of in process"
    table = _table("load", "clients", "by", *headings)
    for row in report["load"]:
        table.add_row(
            str(row["clients"]),
            row["side"].replace("_", " "),
            _number(row["tokens_per_second"]["median"]),
            _tail(row["first_token_seconds"]),
            _tail(row["between_tokens_seconds"]),
            str(row["failed"]),
            f"{row['ratio']:.1%}" if row["ratio"] is not None else "",
        )
    _print(table)
    OUT.print("[dim]times: median / 90th / 99th percentile of all rounds[/]")
    for error in {row["first_error"] for row in report["load"]} - {None}:
        OUT.print(f"a request failed: {error}", style="red", markup=False)


_TIMING = ("middle half", "floor, ms", "x floor")


def _timing(row: Row) -> tuple[str, str, str, str]:
    """Median, quartiles, floor and the ratio of the first to the third."""
    seconds, floor = row["seconds"], row["floor"]
    bounds = f"[dim]{_ms(seconds['q1'])} - {_ms(seconds['q3'])}[/]"
    if floor is None:
        return _ms(seconds["median"]), bounds, "-", "-"
    told = f"{_ms(floor['seconds'])} [dim]{floor['bound']}[/]"
    return _ms(seconds["median"]), bounds, told, f"{row['ratio']:.2f}"


def _tail(tail: Row | None) -> str:
    return " / ".join(_ms(tail[key]) for key in ("median", "p90", "p99")) if tail else "-"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else _number(1e3 * seconds)


def _number(value: float) -> str:
    """Four digits, and never an exponent for what is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in headings:
        is_text = heading in ("cache", "by")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    return table


def _print(table: Table) -> None:
    if table.row_count:
        OUT.print(table)
        OUT.print()
