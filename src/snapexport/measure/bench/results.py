"""Keeps what an experiment has found so far, in one format, with its machine; makes tables of it.

A run that is cut keeps it too. Tables are for a terminal or for Markdown.

    {"format": 1, "experiment", "command", "complete", "device", "machine", "threads", "settings",
     "notes": [...], "sections": {NAME: [row, ...]}, "summary": [row, ...]}

A row of a timed case has its labels, "seconds" (quartiles and the number of samples), "roofline"
and "ratio". Section "rates" has what was probed. The summary follows from the sections.
"""

import dataclasses
import json
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import snapexport
from snapexport.contract.memory import in_mib
from snapexport.files.whole import write_whole
from snapexport.measure.bench import turns
from snapexport.measure.bench.turns import RATES, Case, Group, Row, singles

FORMAT = 1
_PACKAGES = "onnxruntime onnxruntime-gpu openvino numpy torch transformers onnx safetensors".split()

Progress = Callable[[str, int, int], None]
"""Takes what is measured, how many measurements of it are done, and of how many."""
Summary = Callable[[Row], list[Row]]


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_facts() -> dict[str, Any]:
    """The processor, its cores, memory, system and load, and the versions of what runs on it."""
    versions = {"snapexport": snapexport.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "processor": _value("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": cores(),
        "memory_bytes": int(_value("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "system": platform.platform(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "versions": versions,
    }


def _value(path: str, name: str) -> str:
    """The first line `name: value`; empty where there is none."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


@dataclass
class Results:
    """settings: the experiment's, a dataclass. notes: what a reader has to know beside the numbers.

    about: more facts for the top of the file. path: the file that is written after each part.
    """

    experiment: str
    command: str
    settings: Any
    threads: int | None = None
    device: str = "cpu"
    progress: Progress = lambda what, done, total: None
    summary: Summary | None = None
    path: Path | None = None
    about: Row = field(default_factory=dict)
    sections: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    machine: Row = field(default_factory=machine_facts)
    complete: bool = False

    def note(self, *texts: str) -> None:
        self.notes += [text for text in texts if text not in self.notes]

    def measure(
        self, what: str, groups: Sequence[Group], rounds: int, probes: Sequence[Case] = ()
    ) -> None:
        """Time the groups in turn, probes among them; their rows join their sections."""
        everything = [*singles(probes), *groups]
        taken: dict[Case, list[float]] = defaultdict(list)
        total = rounds * sum(case.times for group in everything for case in group)
        self.progress(what, 0, total)
        try:
            for done, (case, seconds) in enumerate(turns.take_turns(everything, rounds), 1):
                taken[case].append(seconds)
                self.progress(what, done, total)
        finally:
            self._add(what, taken)

    def _add(self, what: str, taken: turns.Taken) -> None:
        probed = turns.probe_spreads(taken)
        # In the order of their groups' first turn, whatever the last round's was.
        for section, row in turns.rows(taken, turns.rates(probed)):
            self.sections[section].append(row)
        if probed:
            self.sections[RATES].append({"section": what, **probed})
        self.write()

    def add(self, section: str, row: Row) -> None:
        """Keep one row, at once."""
        self.sections[section].append(row)
        self.write()

    def as_json(self) -> Row:
        """All of it, as plain values."""
        report = {
            "format": FORMAT,
            "experiment": self.experiment,
            "command": self.command,
            "complete": self.complete,
            "device": self.device,
            "machine": self.machine,
            "threads": self.threads,
            **self.about,
            "settings": dataclasses.asdict(self.settings),
            "notes": self.notes,
            "sections": dict(self.sections),
            "summary": self.summary(self.sections) if self.summary else [],
        }
        plain: Row = json.loads(json.dumps(report))
        return plain

    def write(self) -> None:
        """The file as it should be now, whole."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(self.as_json(), indent=1) + "\n")


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
    """Columns of the median under `head`, its quartiles, ms and its roofline."""
    return {
        head: lambda row: ms(row["seconds"]["median"]),
        "quartiles, ms": lambda row: f"{ms(row['seconds']['q1'])} - {ms(row['seconds']['q3'])}",
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
