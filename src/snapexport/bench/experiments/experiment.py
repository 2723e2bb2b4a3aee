"""The record of an experiment."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from snapexport.bench.results import Results, Summary
from snapexport.bench.setup import Setup
from snapexport.bench.tables import Table
from snapexport.bench.turns import Row


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """help: a line. cpu, quick, cuda: its options on the CPU, at tiny sizes, and on a GPU.

    Options are one frozen dataclass; cuda is None where it runs on the CPU alone. run: measures.
    tables: of a report. summary: rows computed from the sections. builds: makes its builds.
    """

    help: str
    cpu: Any
    quick: Any
    run: Callable[[Setup, Any, Results], None]
    tables: Callable[[Row], Iterable[Table]]
    cuda: Any = None
    summary: Summary | None = None
    builds: Callable[[Setup, Any], Iterable[object]] | None = None

    def options(self, device: str, quick: bool) -> Any:
        """Its options; None where it does not run on the device."""
        on_device = self.cuda if device == "cuda" else self.cpu
        return self.quick if quick and on_device else on_device
