"""Writes the tables of results files as Markdown, into a page of the documentation."""

from collections.abc import Iterator
from pathlib import Path

from snapexport.contract.memory import spelled
from snapexport.errors import UserError
from snapexport.measure.bench.results import Table
from snapexport.measure.bench.turns import RATES, Row
from tools.studies.speed.experiments import EXPERIMENTS
from tools.studies.speed.record import read


def write(page: Path, directory: Path) -> list[str]:
    """Put each block between its marks, if the page has them. Returns the written names.

    Raises UserError for a page with no place for any.
    """
    if not page.is_file():
        raise UserError(f"{page} is not there", "name the page with the tables' places")
    text, written = page.read_text(), []
    for name in EXPERIMENTS:
        path = directory / f"{name}.json"
        if not path.is_file():
            continue
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, found, rest = text.partition(start)
        _, ended, after = rest.partition(end)
        if found and ended:
            text = before + start + block(read(path)) + end + after
            written.append(name)
    if not written:
        raise UserError(f"{page} has no place for results", f"mark it: {start}{end}")
    page.write_text(text)
    return written


def block(report: Row) -> str:
    """Tables and facts of one experiment, as Markdown."""
    lines: list[str] = []
    for table in EXPERIMENTS[report["experiment"]].tables(report):
        lines += [*_markdown(table), ""]
    return "\n".join([*lines, *_facts(report)])


def _markdown(table: Table) -> Iterator[str]:
    if table.rows:
        marks = ["---" if table.is_text(n) else "---:" for n in range(len(table.heads))]
        yield f"| {' | '.join(table.heads)} |"
        yield f"|{'|'.join(marks)}|"
        for row in table.rows:
            yield f"| {' | '.join(row)} |"
    if table.notes:
        yield ""
        yield from table.notes


def _facts(report: Row) -> Iterator[str]:
    """The machine, the versions and the rates of the run."""
    machine = report["machine"]
    named = ("snapexport", "python", "onnxruntime")
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in named)
    gpu = f"{machine['gpu']['name']}, " if "gpu" in machine else ""
    cut = "" if report["complete"] else " **The run was cut.**"
    command, *options = report["command"].split(" --set ")
    command += " --set ..." * bool(options)
    yield (
        f"`{command}`: {gpu}{machine['processor']}, {machine['cores']} cores, "
        f"{spelled(machine['memory_bytes'])}, load before {machine['load_average'][0]}; "
        f"{versions}.{cut}"
    )
    rates = []
    for name, unit in {"bandwidth": "GB/s", "matmul": "GFLOP/s"}.items():
        if found := [row[name]["median"] for row in report["sections"][RATES] if name in row]:
            ends = dict.fromkeys(f"{one / 1e9:.0f}" for one in (min(found), max(found)))
            rates.append(f"{' - '.join(ends)} {unit}")
    if rates:
        rows = [row for section in report["sections"].values() for row in section]
        counts = [row["seconds"]["samples"] for row in rows if isinstance(row.get("seconds"), dict)]
        samples = dict.fromkeys(map(str, (min(counts), max(counts)) if counts else ["none"]))
        yield f"Probed: {', '.join(rates)}. Each time is the median of {' to '.join(samples)}."
