"""Compares the memory that `snapexport plan` predicts with the memory of a running build.

Every batch slot generates from a prompt of full length. The peak is the largest anonymous memory
plus the largest mapped memory, since the kernel may drop mapped pages to reclaim memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from snapexport.builder.staging import scratch
from snapexport.errors import UserError
from snapexport.measure.bench.results import Column, Table
from snapexport.measure.bench.systems import run_apart
from snapexport.measure.bench.turns import Row, six_digits
from tools.studies.speed.memory import peak
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

TOKENS = 8

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "full cache": {"policy": "full"},
    "16 : 1": {"compression": 16},
    "batch 16": {"batch": 16},
    "L_obs 32": {"L_obs": 32},
    "chunk 128": {"prefill_chunk": 128},
    "chunk 2048": {"prefill_chunk": 2048},
    "single shot": {"prefill_chunk": 4096},
    "int4": {"weights": "int4"},
    "fp16": {"dtype": "fp16"},
    "portable": {"target": "portable"},
    "portable, chunk 128": {"target": "portable", "prefill_chunk": 128},
}


@dataclass(frozen=True)
class Options:
    """only: names of SETTINGS."""

    checkpoint: str = "narrow"
    L_max: int = 4096
    only: tuple[str, ...] = tuple(SETTINGS)
    rounds: int = 1

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in SETTINGS:
                raise UserError(f"no setting '{name}'", f"choose from {', '.join(SETTINGS)}")


def run(setup: Setup, options: Options, results: Results) -> None:
    """Build and measure each setting, the latter in a process of its own."""
    model = setup.model(options.checkpoint)
    setup.work.mkdir(parents=True, exist_ok=True)
    for done, name in enumerate(options.only):
        results.progress(name, done, len(options.only))
        if not results.has("memory", {"setting": name}):
            with scratch(setup.work / "plan") as directory:
                found = _compared(model, directory, name, options)
                results.add("memory", {"setting": name, **found})


def _compared(model: Path, directory: Path, name: str, options: Options) -> Row:
    from snapexport.builder import BuildOptions
    from snapexport.builder import run as run_build
    from snapexport.builder.plan.footprint import footprint
    from snapexport.builder.plan.model import read_model

    given: dict[str, Any] = {"L_max": options.L_max, "batch": 4, "decode_batches": ()}
    given |= SETTINGS[name]
    if compression := given.pop("compression", None):
        given["kv_budget"] = options.L_max // compression
    asked = BuildOptions.of(model=str(model), out=directory / "build", **given)
    manifest = run_build(asked).manifest
    taken = footprint(read_model(str(model)), asked, manifest.geometry, manifest.prefill_chunk)
    predicted = taken.prefill_peak
    measured = run_apart(
        f"measuring '{name}'", partial(peak, asked.out, options.L_max - TOKENS, TOKENS)
    )
    return {"predicted": predicted, "measured": measured, "ratio": six_digits(predicted / measured)}


def tables(report: Row) -> Iterator[Table]:
    """A row for each setting, in MB."""
    columns: dict[str, Column] = {
        "setting": "{setting}",
        "predicted, MB": lambda row: f"{row['predicted'] / 1e6:.0f}",
        "measured, MB": lambda row: f"{row['measured'] / 1e6:.0f}",
        "ratio": "{ratio:.3f}",
    }
    yield Table.of("memory, predicted and measured", report["sections"]["memory"], columns)


PLAN = Experiment(
    help="what `snapexport plan` predicts against what a running build takes",
    cpu=Options(),
    quick=Options(L_max=512, only=("default", "full cache")),
    run=run,
    tables=tables,
)
