"""What an experiment has found so far. A run that is cut keeps it."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from snapexport.bench import machine, run
from snapexport.bench.probes import Bandwidth, MatMul

from . import turns
from .turns import Case, Row

Tell = Callable[[str, int, int], None]
"""What is measured, how many measurements of it are done, and of how many."""

_PACKAGES = ("torch", "transformers", "onnx", "safetensors")


@dataclass
class Report:
    """options: the experiment's. notes: what a reader has to know beside the numbers."""

    experiment: str
    command: str
    options: Any
    threads: int
    tell: Tell
    sections: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def __post_init__(self) -> None:
        self._machine = machine.described()
        self._machine["versions"] |= {name: found for name in _PACKAGES if (found := _found(name))}

    def measure(self, section: str, cases: Sequence[Case], rounds: int) -> None:
        """Time the cases in turn, probes among them; their rows join the section."""
        probes = turns.probe_cases([Bandwidth(self.threads), MatMul(self.threads)])
        everyone = [*probes, *cases]
        taken: dict[int, list[float]] = defaultdict(list)
        total = turns.steps(everyone, rounds)
        self.tell(section, 0, total)
        try:
            for done, (number, seconds) in enumerate(turns.take_turns(everyone, rounds), 1):
                taken[number].append(seconds)
                self.tell(section, done, total)
        finally:
            found = turns.rows(everyone, taken, turns.rates(everyone, taken))
            self.sections[section] += [row for row in found if "probe" not in row]
            self.sections["rates"].append({"section": section, **turns.rate_rows(everyone, taken)})

    def as_json(self) -> Row:
        """All of it."""
        return {
            "experiment": self.experiment,
            "command": self.command,
            "complete": self.complete,
            "machine": self._machine,
            "threads": self.threads,
            "options": dataclasses.asdict(self.options),
            "notes": self.notes,
            **self.sections,
        }

    def write(self, directory: Path) -> Path:
        """`EXPERIMENT.json` in the directory, never half of it."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.experiment}.json"
        run.write(self.as_json(), path)
        return path


def _found(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
