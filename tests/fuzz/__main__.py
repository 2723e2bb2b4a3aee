"""Fuzz what comes from outside: python -m tests.fuzz --kind manifests --cases 2000 --seed 0."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz import children, material
from tests.fuzz.outcomes import Result, table

COUNTS = {
    "manifests": (2000, 120),
    "headers": (1000, 150),
    "gguf": (1500, 100),
    "gguf-blocks": (1000, 60),
    "quantized": (1500, 100),
    "configs": (2000, 100),
    "tokenizers": (600, 80),
    "templates": (600, 60),
}
"""Cases of a full run, and those of a short one: less than two minutes on two cores."""
SEEDS: dict[str, list[int]] = json.loads((Path(__file__).parent / "seeds.json").read_text())
"""Cases of seed 0 that failed once."""


def main() -> int:
    arguments = parser().parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="snapexport-fuzz-") as scratch:
        work = arguments.work or Path(scratch)
        material.ensure(work)
        results = {kind: run(kind, arguments, work) for kind in arguments.kind}
    print(table(results))
    return int(any(result.failed for found in results.values() for result in found))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", nargs="+", choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--cases", type=int, help="of each kind (default: the full counts)")
    parser.add_argument("--short", action="store_true", help="two minutes of all kinds")
    parser.add_argument("--only", type=int, nargs="+", help="cases by number, each shown")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, help="keeps the material for another run")
    return parser


def run(name: str, arguments: argparse.Namespace, work: Path) -> list[Result]:
    first = range(arguments.cases or COUNTS[name][arguments.short])
    indices = arguments.only or sorted({*first, *(SEEDS[name] if arguments.seed == 0 else ())})
    found = children.run(make(name, work), arguments.seed, indices, work, arguments.workers)
    results = []
    for done, result in enumerate(found, 1):
        results.append(result)
        if arguments.only or result.failed:
            print(result, file=sys.stdout if arguments.only else sys.stderr, flush=True)
        elif done % 200 == 0:
            print(f"{name}: {done}, {sum(one.failed for one in results)} failed", file=sys.stderr)
    children.remove_leftovers(work)
    return results


def make(name: str, work: Path) -> children.Kind:
    """Import the kind's libraries, and read what it mutates."""
    from tests.fuzz import configs, gguf_headers, headers, manifests, quantized, texts

    kinds = (
        manifests.Manifests,
        headers.Headers,
        gguf_headers.GgufHeaders,
        quantized.GgufBlocks,
        quantized.Quantized,
        configs.Configs,
        texts.Tokenizers,
        texts.Templates,
    )
    return {kind.name: kind for kind in kinds}[name](work)


if __name__ == "__main__":
    sys.exit(main())
