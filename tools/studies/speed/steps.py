"""Compares decode steps of builds, in turn, behind caches that hold random numbers.

usage: python -m tools.studies.speed.steps BUILD BUILD ... [--context N] [--rounds R] [--out FILE]

A step is that of all batch slots, at position N - 1. A ratio to the first build is the median of
the ratios within a round, so that a drift of the machine cancels.
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.measure.bench.turns import Row, timer
from snapexport.runtime.engine.open_executor import open_executor
from tools.studies.speed.filled import FilledSystem

WARM_UP = 2


def compared(systems: list[FilledSystem], context: int, rounds: int) -> list[Row]:
    """A row for each build: the median milliseconds of its step, and its ratio to the first's."""
    taken: list[list[float]] = [[] for _ in systems]
    for turn in range(WARM_UP + rounds):
        order = range(len(systems)) if turn % 2 else reversed(range(len(systems)))
        for which in order:
            one = systems[which]
            step = timer(partial(one.step, context, one.build.manifest.batch))
            taken[which].append(step())
    rows = []
    for one, seconds in zip(systems, taken, strict=True):
        ratios = [mine / first for mine, first in zip(seconds, taken[0], strict=True)][WARM_UP:]
        caches = [
            spec.shape
            for spec in one.build.manifest.graphs["decode"].inputs
            if names.is_past(spec.name) and spec.name.endswith(".key")
        ]
        rows.append(
            {
                "build": one.build.directory.name,
                "batch": one.build.manifest.batch,
                "caches": len(caches),
                "slots of all heads": sum(shape[1] * shape[2] for shape in caches),
                "ms": round(1e3 * statistics.median(seconds[WARM_UP:]), 1),
                "ratio": round(statistics.median(ratios), 3),
                "ratio, quartiles": [round(x, 3) for x in statistics.quantiles(ratios)[::2]],
            }
        )
    return rows


def main() -> None:
    """Print a row of each build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("builds", nargs="+", type=Path, metavar="BUILD")
    parser.add_argument("--context", type=int, help="positions; default: the first build's L_max")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the rows as JSON")
    given = parser.parse_args()
    builds = [Build.open(one) for one in given.builds]
    context = given.context or builds[0].manifest.geometry.L_max
    systems = [FilledSystem(one, open_executor(one, threads=given.threads)) for one in builds]
    rows = compared(systems, context, given.rounds)
    print(*rows, sep="\n")
    if given.out:
        report = {"context": context, "rounds": given.rounds, "threads": given.threads}
        given.out.write_text(json.dumps(report | {"builds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
