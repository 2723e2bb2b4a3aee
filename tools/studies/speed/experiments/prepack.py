"""Measures memory and decode time with one copy of the weights and with two.

`prepack` gives decode a second copy of the weights, rearranged for several rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from snapexport.measure.bench.results import Column, Table, mib
from snapexport.measure.bench.systems import run_apart
from snapexport.measure.bench.turns import Row
from tools.studies.speed.memory import prepacked
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup


@dataclass(frozen=True)
class Options:
    """batch: batch slots that decode, each after a prompt of one chunk."""

    checkpoint: str = "medium"
    batch: int = 4
    L_max: int = 4096
    kv_budget: int = 1024
    rounds: int = 30


def run(setup: Setup, options: Options, results: Results) -> None:
    """Each setting in a process of its own."""
    build = setup.builds(options.checkpoint).get(options.L_max, options.kv_budget, options.batch)
    for done, prepack in enumerate((False, True)):
        results.progress("prepack" if prepack else "no prepack", done, 2)
        action = partial(prepacked, build.directory, setup.threads, prepack, options.rounds)
        results.add("memory", run_apart("measuring memory", action))


def tables(report: Row) -> Iterator[Table]:
    """A row for each setting."""
    columns: dict[str, Column] = {
        "setting": lambda row: "prepacked" if row["prepack"] else "as it is",
        "weights, MiB": lambda row: mib(row["weights_bytes"]),
        "own, MiB": lambda row: mib(row["after_decode"]["anonymous"]),
        "mapped, MiB": lambda row: mib(row["after_decode"]["mapped_files"]),
        "step, ms": lambda row: f"{1e3 * row['decode_seconds']:.1f}",
    }
    rows = report["sections"]["memory"]
    yield Table.of("memory, with and without prepacking", rows, columns)


PREPACK = Experiment(
    help="memory and decode time of a running build, with and without prepacking",
    cpu=Options(),
    quick=Options(L_max=512, kv_budget=128, rounds=2),
    run=run,
    tables=tables,
)
