"""Plants faults one at a time in a copy of the repository, and reports whether tests catch them.

    python tools/planted_faults.py                  all faults, 15 minutes on 2 cores
    python tools/planted_faults.py --only ring      those whose name contains one of these
    python tools/planted_faults.py --list           whether each fault's place is found, in a second

The faults are in planted_faults.toml. Each is found by its text, wherever its file lies. It counts
as caught if its tests fail with it; before, the same tests must pass. The copy is a git worktree of
HEAD: commit first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
PACKAGES = ("exporter", "graphs", "plugins", "runtime", "src/snapexport")


@dataclass(frozen=True)
class Fault:
    """`new` stands for `old`, which one file has once. tests: patterns of files below tests/."""

    name: str
    old: str
    new: str
    tests: list[str]


@dataclass(frozen=True)
class Verdict:
    """Result of a fault: caught, SURVIVED, or the reason why it was not tried."""

    fault: str
    verdict: str
    place: str = ""
    seconds: float = 0.0


def sources(root: Path) -> Iterator[Path]:
    """Files of the packages, each under one name: src/snapexport links to the others."""
    for package in PACKAGES:
        for folder, _, names in os.walk(root / package):
            for name in sorted(names):
                if name.endswith((".py", ".h", ".cu", ".cpp")):
                    yield Path(folder) / name


def find(root: Path, text: str) -> list[Path]:
    """The files that contain a text, each once for every occurrence."""
    return [file for file in sources(root) for _ in range(file.read_text().count(text))]


def tests_of(root: Path, fault: Fault) -> list[str]:
    """The test files that a fault's patterns match; none if one of them matches no file."""
    matches = [[*root.glob(f"tests/{pattern}")] for pattern in fault.tests]
    return sorted({str(file) for match in matches for file in match}) if all(matches) else []


def pass_tests(root: Path, tests: list[str]) -> bool:
    """Run test files up to the first failure. What no fault can change comes from the store."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not architectures", *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # neither passed nor failed: nothing was tested
        raise SystemExit(f"error: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def verdict(root: Path, fault: Fault, passing: set[str]) -> Verdict:
    """Plant a fault, run its tests, and revert it. passing: tests that passed without faults."""
    places, tests = find(root, fault.old), tests_of(root, fault)
    if len(places) != 1:
        return Verdict(fault.name, f"not planted: its text is found {len(places)} times")
    if not tests:
        return Verdict(fault.name, "not planted: its tests are not found")
    (place,) = places
    shown = str(place.relative_to(root))
    fresh = [test for test in tests if test not in passing]
    if fresh and not pass_tests(root, fresh):
        return Verdict(fault.name, "not planted: its tests fail without it", shown)
    passing.update(fresh)
    before, start = place.read_text(), time.monotonic()
    place.write_text(before.replace(fault.old, fault.new))
    try:
        survived = pass_tests(root, tests)
    finally:
        place.write_text(before)
    seconds = round(time.monotonic() - start, 1)
    return Verdict(fault.name, "SURVIVED" if survived else "caught", shown, seconds)


@contextmanager
def scratch_copy() -> Iterator[Path]:
    """A git worktree of HEAD that goes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(root)], check=True, capture_output=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def list_places(faults: list[Fault]) -> bool:
    """Print where each fault would be planted; whether all have one place and a test."""
    sound = True
    for fault in faults:
        places, tests = find(ROOT, fault.old), tests_of(ROOT, fault)
        shown = ", ".join(str(place.relative_to(ROOT)) for place in places) or "NOWHERE"
        print(f"{fault.name}: {shown}; {len(tests)} test files")
        sound = sound and len(places) == 1 and bool(tests)
    return sound


def main() -> None:
    """Print a verdict a line, then one JSON line; exit 1 where a fault was not caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="faults whose name contains one")
    parser.add_argument("--list", action="store_true", help="only print where faults are planted")
    arguments = parser.parse_args()
    table = tomllib.loads(TABLE.read_text())["faults"]
    faults = [Fault(**row) for row in table if any(w in row["name"] for w in arguments.only)]
    if arguments.list:
        raise SystemExit(not list_places(faults))
    verdicts, passing = [], set[str]()
    with scratch_copy() as root:
        for fault in faults:
            verdicts.append(one := verdict(root, fault, passing))
            print(f"{one.verdict}: {one.fault} ({one.place}, {one.seconds} s)", flush=True)
    print(json.dumps([asdict(one) for one in verdicts]))
    raise SystemExit(any(one.verdict != "caught" for one in verdicts))


if __name__ == "__main__":
    main()
