"""Measures the memory of servers under load, and says whether each stayed below its bound.

python -m tests.memory BUILD BACKEND MEMORY [BUILD BACKEND MEMORY ...] --seconds 120
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.memory.load import CLIENTS, Readings, loaded, measured, problems

MEMORY = "--memory"
LOOSENESS = 1.6
"""The most that a bound may be, as a multiple of the peak."""


def run(build: Path, backend: str, seconds: float, flags: Sequence[str]) -> Readings:
    with loaded(build, "--backend", backend, *flags) as (serving, load):
        return asyncio.run(measured(serving, load, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="+", metavar="BUILD BACKEND MEMORY")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--loose", action="store_true", help="the bound may be far above the peak")
    arguments = parser.parse_args()
    words, failed = arguments.words, False
    print(f"{CLIENTS} clients, {arguments.seconds:g} s each; MiB of resident memory")
    for build, backend, memory in zip(words[::3], words[1::3], words[2::3], strict=True):
        flags = ("--threads", str(os.cpu_count() or 1), MEMORY, memory)
        readings = run(Path(build), backend, arguments.seconds, flags)
        found = problems(readings, None if arguments.loose else LOOSENESS)
        failed |= bool(found)
        bound, peak = readings.bound / 2**20, readings.peak / 2**20
        print(
            f"{Path(build).name}, {backend}: peak {peak:.0f}, bound {bound:.0f} "
            f"({bound / peak:.2f}), {len(readings.resident)} readings, "
            f"{dict(readings.statuses)}; {'; '.join(found) or 'below its bound'}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
