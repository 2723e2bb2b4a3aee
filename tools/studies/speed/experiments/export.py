"""Measures time and peak memory of exporting checkpoints of large models at 131,072 tokens.

Runs the command that the README shows, on sparse checkpoints of 8, 70 and 671 billion parameters.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from snapexport.builder.staging import scratch
from snapexport.contract.memory import in_mib
from snapexport.measure.bench.results import Column, Table, mib
from snapexport.measure.bench.turns import Row
from tools.studies.speed import checkpoints
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Experiment, Setup

FLAGS = "--L-max 131072 --dtype bf16 --target tensorrt".split()
BUDGETS = {"r1": 32768}
"""--kv-budget of a shape; SnapStream's for DeepSeek-R1. Others: a sixteenth of the prompt."""
USUAL_BUDGET = 8192


@dataclass(frozen=True)
class Options:
    """shapes: of `checkpoints.SHAPES`, ascending: a peak is that of the largest child so far."""

    shapes: tuple[str, ...] = ("8b", "70b", "r1")
    rounds: int = 1


def run(setup: Setup, options: Options, results: Results) -> None:
    """A build of each shape in a process of its own."""
    setup.work.mkdir(parents=True, exist_ok=True)
    for done, shape in enumerate(options.shapes):
        results.progress(shape, done, len(options.shapes))
        with scratch(setup.work / "export") as directory:
            results.add("builds", measured(shape, directory))


def measured(shape: str, directory: Path) -> Row:
    """Seconds and bytes of a build."""
    checkpoint, out = directory / "checkpoint", directory / "llama.build"
    weights = checkpoints.write(checkpoint, checkpoints.SHAPES[shape], "bf16", sparse=True)
    flags = [*FLAGS, "--kv-budget", str(BUDGETS.get(shape, USUAL_BUDGET))]
    command = [sys.executable, "-m", "snapexport", "build", "--model", str(checkpoint), *flags]
    started = time.perf_counter()
    subprocess.run([*command, "--out", str(out)], check=True, stdout=sys.stderr)
    return {
        "command": "snapexport build " + " ".join(flags),
        "shape": shape,
        "seconds": round(time.perf_counter() - started, 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "weights_bytes": weights,
        "graphs_bytes": sum(path.stat().st_size for path in out.glob("*.onnx")),
    }


def tables(report: Row) -> Iterator[Table]:
    """A row for each shape."""
    columns: dict[str, Column] = {
        "setting": "{shape}",
        "weights, MiB": lambda row: mib(row["weights_bytes"]),
        "seconds": "{seconds:.1f}",
        "peak memory, MiB": lambda row: mib(row["peak_bytes"]),
        "graphs, MiB": lambda row: f"{in_mib(row['graphs_bytes']):.2f}",
    }
    yield Table.of("exporting", report["sections"]["builds"], columns)


EXPORT = Experiment(
    help="time and memory of exporting checkpoints of large models",
    cpu=Options(),
    quick=Options(shapes=("small",)),
    run=run,
    tables=tables,
)
