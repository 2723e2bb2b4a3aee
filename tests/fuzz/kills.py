"""Kills builds at random moments: python -m tests.fuzz.kills --fresh 200 --overwriting 200.

After a kill there is nothing at the target or a whole build, and where one was overwritten, always
a whole one. Most builds are a stand-in that writes a few files; `--real` says how many are builds
of a tiny checkpoint.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from snapexport.builder.staging import staged
from snapexport.contract.manifest import MANIFEST
from tests.fuzz import material

FILES = 12
Writer = Callable[[Path, bool], None]
"""Writes a build to a target, overwriting or not."""


def write_stand_in(target: Path, overwrite: bool) -> None:
    """A build of FILES files that all hold one number."""
    number = str(random.random())
    with staged(target, overwrite) as directory:
        for index in range(FILES):
            (directory / f"{index}").write_text(number)
        (directory / MANIFEST).write_text(number)


def is_whole_stand_in(target: Path) -> bool:
    texts = {path.read_text() for path in target.iterdir()}
    return len(texts) == 1 and len(list(target.iterdir())) == FILES + 1


class RealBuilds:
    """Builds of a tiny checkpoint, from traces on disk."""

    def __init__(self, work: Path) -> None:
        from snapexport.exporter import trace
        from tests import trace_cache
        from tests.store import Store

        self._checkpoint = work / "llama"
        for name in ("trace_prefill", "trace_decode"):
            cached = trace_cache.caching(getattr(trace, name), Store(work / "traces"))
            setattr(trace, name, cached)

    def write(self, target: Path, overwrite: bool) -> None:
        from snapexport.builder import build

        build(self._checkpoint, target, overwrite=overwrite, **material.FLAGS)

    def is_whole(self, target: Path) -> bool:
        from snapexport.contract.build_directory import Build

        return not Build.open(target).verify_weights()


def killed(write: Writer, target: Path, overwrite: bool, after: float) -> bool:
    """Whether the build was killed before it ended by itself."""
    pid = os.fork()
    if pid == 0:
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        try:
            random.seed()
            write(target, overwrite)
            os._exit(0)
        except BaseException:
            os._exit(1)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"the build failed by itself: {code}"
    return code != 0


def duration(write: Writer, place: Path) -> float:
    """Seconds of a build in a child, so that the mother starts no threads."""
    write_in_child(write, place / "timed")  # what is cached once is cached now
    began = time.monotonic()
    write_in_child(write, place / "timed", overwrite=True)
    seconds = time.monotonic() - began
    shutil.rmtree(place / "timed")
    return seconds


def series(
    write: Writer, is_whole: Callable[[Path], bool], place: Path, count: int, overwrite: bool
) -> Counter[str]:
    """Kill `count` builds, each before its end."""
    found: Counter[str] = Counter()
    target, seconds, rng = place / "b", duration(write, place), random.Random(count)
    while found["killed"] < count:
        if overwrite and not target.exists():
            write_in_child(write, target)
        if not killed(write, target, overwrite, rng.uniform(0, 1.05 * seconds)):
            found["ended before"] += 1
        else:
            found["killed"] += 1
        there = target.exists()
        found["lost"] += overwrite and not there
        try:
            whole = there and is_whole(target)
        except ValueError:  # UserError is one
            whole = False
        found["half"] += there and not whole
        found["at the target"] += there
        if there and not overwrite:
            shutil.rmtree(target)
    write_in_child(write, target, overwrite)
    found["left over"] = len([path for path in place.iterdir() if path != target])
    shutil.rmtree(target)
    return found


def write_in_child(write: Writer, target: Path, overwrite: bool = False) -> None:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        write(target, overwrite)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kills", description=__doc__)
    parser.add_argument("--fresh", type=int, default=200)
    parser.add_argument("--overwriting", type=int, default=200)
    parser.add_argument("--real", type=int, default=20, help="of each, builds of a checkpoint")
    parser.add_argument("--work", type=Path, help="keeps the material for another run")
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    report = {}
    with tempfile.TemporaryDirectory(prefix="snapexport-kills-") as scratch:
        work = arguments.work or Path(scratch) / "material"
        for name, count in (("fresh", arguments.fresh), ("overwriting", arguments.overwriting)):
            place = Path(scratch) / name
            place.mkdir()
            overwrite = name == "overwriting"
            stand_ins = max(0, count - arguments.real)
            report[name] = series(write_stand_in, is_whole_stand_in, place, stand_ins, overwrite)
            if arguments.real:
                material.ensure(work)
                real = RealBuilds(work)
                report[f"{name}, real"] = series(
                    real.write, real.is_whole, place, min(count, arguments.real), overwrite
                )
    for name, found in report.items():
        print(name, dict(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(one["lost"] + one["half"] + one["left over"] for one in report.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
