"""Fuzz what comes from outside: python -m tests.fuzz --kind manifests --cases 2000 --seed 0."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz import children, material
from tests.fuzz.kinds import COUNTS, make
from tests.fuzz.outcomes import Summary, common_faults, table

SHORT = {
    "manifests": 120,
    "graphs": 80,
    "headers": 150,
    "gguf": 100,
    "configs": 100,
    "tokenizers": 80,
    "templates": 60,
}
"""Cases that take less than two minutes on two cores."""


SEEDS: dict[str, list[int]] = json.loads((Path(__file__).parent / "seeds.json").read_text())
"""Cases of seed 0 that failed once."""


def main() -> int:
    arguments = parser().parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="snapexport-fuzz-") as scratch:
        work = arguments.work or Path(scratch)
        material.ensure(work)
        summaries = [run(kind, arguments, work) for kind in arguments.kind]
    print(table(summaries))
    if arguments.json:
        arguments.json.write_text(json.dumps([one.as_json() for one in summaries], indent=1) + "\n")
    return 1 if any(one.failures for one in summaries) else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", nargs="+", choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--cases", type=int, help="of each kind (default: the full counts)")
    parser.add_argument("--short", action="store_true", help="two minutes of all kinds")
    parser.add_argument("--only", type=int, nargs="+", help="cases by number, each shown")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, help="keeps the material for another run")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser


def run(name: str, arguments: argparse.Namespace, work: Path) -> Summary:
    counts = SHORT if arguments.short else COUNTS
    first = range(arguments.cases or counts[name])
    indices = arguments.only or sorted({*first, *(SEEDS[name] if arguments.seed == 0 else ())})
    kind = make(name, work)
    found = children.run(kind, arguments.seed, indices, work, arguments.workers)
    results = []
    for done, result in enumerate(found, 1):
        results.append(result)
        if arguments.only or result.failed:
            print(result, file=sys.stdout if arguments.only else sys.stderr, flush=True)
        elif done % 200 == 0:
            print(f"{name}: {done}, {sum(one.failed for one in results)} failed", file=sys.stderr)
    children.remove_leftovers(work)
    summary = Summary(name, arguments.seed, sorted(results, key=lambda one: one.index))
    for line in common_faults(summary):
        print(f"{name}: {line}", file=sys.stderr)
    return summary


if __name__ == "__main__":
    sys.exit(main())
