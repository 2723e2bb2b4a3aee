"""Writes the tables of results files into a page of the documentation."""

from collections.abc import Iterator
from pathlib import Path

from snapexport.bench import tables
from snapexport.bench.experiments import EXPERIMENTS
from snapexport.bench.results import read
from snapexport.bench.turns import RATES, Row
from snapexport.contract.bytes import spelled
from snapexport.contract.errors import UserError


def block(report: Row) -> str:
    """Tables and facts of one experiment, as Markdown."""
    lines: list[str] = []
    for table in EXPERIMENTS[report["experiment"]].tables(report):
        lines += [*tables.markdown(table), ""]
    return "\n".join([*lines, *_facts(report)])


def write(page: Path, directory: Path) -> list[str]:
    """Put each block between its marks in the page. Returns the names of the written ones."""
    if not page.is_file():
        raise UserError(f"{page} is not there", "name the page with the tables' places")
    text, written = page.read_text(), []
    for name in EXPERIMENTS:
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        path = directory / f"{name}.json"
        if not path.is_file():
            continue
        before, found, rest = text.partition(start)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise UserError(f"{page} has no place for {name}", f"mark it: {start}{end}")
        text = before + start + block(read(path)) + end + after
        written.append(name)
    page.write_text(text)
    return written


def _facts(report: Row) -> Iterator[str]:
    """The machine, the versions and the rates of the run."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    gpu = f"{machine['gpu']['name']}, " if "gpu" in machine else ""
    cut = "" if report["complete"] else " **The run was cut.**"
    yield (
        f"`{report['command']}`: {gpu}{machine['processor']}, {machine['cores']} cores, "
        f"{spelled(machine['memory_bytes'])}, load before {machine['load_average'][0]}; "
        f"{versions}.{cut}"
    )
    units = {"bandwidth": "GB/s", "matmul": "GFLOP/s"}
    rows = report["sections"][RATES]
    told = [
        f"{_range([row[probe]['median'] for row in rows if probe in row])} {unit}"
        for probe, unit in units.items()
        if any(probe in row for row in rows)
    ]
    if told:
        yield f"Probed: {', '.join(told)}. Each time is the median of {_samples(report)}."


def _samples(report: Row) -> str:
    """How many there are, from the row with the fewest to that with the most."""
    rows = [row for section in report["sections"].values() for row in section]
    found = [row["seconds"]["samples"] for row in rows if isinstance(row.get("seconds"), dict)]
    counts = sorted(found)
    return " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:])) or "none"


def _range(medians: list[float]) -> str:
    """Of the parts of a run, in 10^9."""
    low, high = f"{min(medians) / 1e9:.0f}", f"{max(medians) / 1e9:.0f}"
    return low if low == high else f"{low} - {high}"
