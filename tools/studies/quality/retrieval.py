"""Measures the retrieval of the two vault checkpoints from 2,048 tokens, for docs/quality.md.

Runs `snapexport eval` on held-out prompts, 500 for each cell of the table and 200 for each of the
ablation. After an interrupt, it continues where it stopped.
"""

import argparse
from pathlib import Path

from snapexport.cli.app import main as snapexport
from snapexport.vault import CHECKPOINT

CHECKPOINTS = {
    "untaught": Path(__file__).parents[1] / "train_vault" / "untaught",
    "bundled": CHECKPOINT,
}
TOKENS = 2048
DEPTHS = [f"{0.05 + 0.1 * index:.2f}" for index in range(10)]
POLICIES = [
    "full",
    *("snapstream", "snapstream:softmax=candidates,vote=sum", "snapstream:pool_kernel=7"),
    *("streaming", "sage", "snapkv"),
]


def changed(*changes: str) -> list[str]:
    """SnapStream with some options changed from the build's."""
    return [f"snapstream:{change}" for change in changes]


CHANGES = [
    *(f"pool_kernel={kernel}" for kernel in (1, 3, 5, 7, 9, 13, 15, 63)),
    "pool=max",
    *(f"L_obs={window}" for window in (1, 4, 12, 16)),
    *(f"L_recent={ring}" for ring in (12, 16, 24, 40)),
    *("softmax=candidates", "vote=sum", "softmax=candidates,vote=sum"),
    *("group=max", "budget=pyramid", "L_sink=0"),
]
"""One option at a time, compared with the defaults at the same number of cache slots."""

ABLATION = {"modes": ["aware"], "samples": "30", "hit-samples": "0", "seed": "500000"}
RINGS = {32: (8, 10, 14, 18), 64: (15, 20, 30, 40), 128: (31, 41, 62, 82)}
"""A quarter or (at 32 slots) W, a third, a half and two thirds of what the sinks leave."""

RUNS = {
    "table": {
        "policies": POLICIES,
        "budgets": ["64", "128", "256", "512"],
        "modes": ["aware", "agnostic"],
        "samples": "50",
        "hit-samples": "20",
    },
    "late": {
        "policies": POLICIES,
        "budgets": ["64", "128"],
        "modes": ["late"],
        "samples": "50",
        "hit-samples": "0",
    },
    "ablation": {
        "policies": ["snapstream", *changed(*CHANGES)],
        "budgets": ["64"],
        "modes": ["aware", "agnostic"],
        "samples": "20",
        "hit-samples": "0",
        "seed": "500000",
    },
    "window": ABLATION
    | {
        "policies": changed(*(f"L_obs={window}" for window in (1, 2, 4, 8, 12))),
        "budgets": ["32", "64", "128"],
    },
    "kernel": ABLATION
    | {
        "policies": changed(
            *(f"pool_kernel={kernel}" for kernel in (5, 7, 9, 11, 15, 31, 63)),
            *(f"pool_kernel={kernel},pool=max" for kernel in (5, 7, 9, 31)),
            *(f"pool_kernel={kernel},softmax=candidates,vote=sum" for kernel in (7, 31)),
        ),
        "budgets": ["32", "64", "128"],
    },
    **{
        f"ring{slots}": ABLATION
        | {"policies": changed(*(f"L_recent={ring}" for ring in rings)), "budgets": [str(slots)]}
        for slots, rings in RINGS.items()
    },
}


def main() -> None:
    """Build once, and run the named evaluations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", default=list(RUNS), metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default="untaught")
    parser.add_argument("--out", type=Path, default=Path("build/retrieval"))
    parser.add_argument("--threads", default="2")
    arguments = parser.parse_args()
    out = arguments.out / arguments.checkpoint
    build = out / "vault.build"
    if not build.exists():
        options = f"--L-max {TOKENS} --kv-budget 128 --batch 1 --baseline"
        model = ["--model", str(CHECKPOINTS[arguments.checkpoint]), "--out", str(build)]
        require(snapexport(["build", *model, *options.split()]))
    common = {"tasks": "vault", "lengths": str(TOKENS), "threads": arguments.threads}
    for run in arguments.runs:
        flags = flags_of(common | {"depths": DEPTHS} | RUNS[run])
        require(snapexport(["eval", str(build), *flags, "--out", str(out / run)]))


def flags_of(options: dict[str, str | list[str]]) -> list[str]:
    """Write options as a command line."""
    flags = []
    for name, value in options.items():
        flags += [f"--{name}", *([value] if isinstance(value, str) else value)]
    return flags


def require(status: int) -> None:
    """Exit if a command has failed."""
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    main()
