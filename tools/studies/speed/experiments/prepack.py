"""Measures memory and decode time with one copy of the weights and with two.

`prepack` gives decode a second copy of the weights, rearranged for several rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from snapexport.contract.build_directory import Build
from snapexport.measure.bench.memory import apart
from snapexport.measure.bench.systems import load
from snapexport.measure.bench.tables import Column, Table, mib
from snapexport.measure.bench.turns import Row, clocked
from tools.studies.speed.device import share
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
        action = partial(measured, build.directory, setup.threads, prepack, options.rounds)
        results.add("memory", apart("measuring memory", action))


def measured(directory: Path, threads: int, prepack: bool, rounds: int) -> Row:
    """Memory after loading and after a prefill and some steps, and the median step."""
    executor = load(directory, threads=threads, prepack=prepack).executor
    loaded, limits = share(), executor.limits
    prompt = list(range(2, 2 + limits.prefill_chunk))
    for slot in range(limits.batch):
        executor.prefill_prompt(slot, prompt)
    lengths = np.full(limits.batch, len(prompt))
    seconds = [
        clocked(partial(executor.decode, np.ones_like(lengths), lengths + step, lengths))()
        for step in range(rounds)
    ]
    return {
        "prepack": prepack,
        "batch": limits.batch,
        "weights_bytes": sum(weights.size for weights in Build.open(directory).manifest.weights),
        "loaded": _named(loaded),
        "after_decode": _named(share()),
        "decode_seconds": median(seconds),
    }


def _named(taken: tuple[int, int]) -> Row:
    return dict(zip(("anonymous", "mapped_files"), taken, strict=True))


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
