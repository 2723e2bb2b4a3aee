"""Adds to a result of `weights.py` how long a token takes that is decoded behind 1,023 others.

    python -m tools.studies.quality.weights_speed MODEL.gguf --peers-python PEERS/bin/python \
        --work FOLDER --out RESULT.json

FOLDER is that of `weights.py`, which made the models. All are loaded at once, each in a process of
its own, and take turns: one row, two threads, each library's own cache.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tools.studies.quality import weights
from tools.studies.quality.reordered import reordered
from tools.studies.quality.weights import THREADS, WAYS, Job
from tools.studies.speed.from_gguf import checkpoint_of
from tools.studies.speed.peers import genai, llama_cpp_peer, snapexport_build
from tools.studies.speed.peers.process import Variant, Worker

CONTEXT, ROOM = 1024, 64
STEPS = 8
"""Of one model, before the next one's turn."""


Made = tuple[ModuleType, dict[str, Any]]
"""The plug-in that runs a model, and its options."""


def _ours(job: Job, form: str) -> Made:
    build = weights.build_of(job, form, CONTEXT + ROOM, batch=1)
    return snapexport_build, {"build": str(build.absolute())}


def _llama_cpp(job: Job, form: str) -> Made:
    file = str(weights.gguf_of(job, form).absolute())
    options = {"model": "", "directory": "", "weights": file, "gguf": file, "longest": CONTEXT}
    return llama_cpp_peer, options


def _genai(job: Job, precision: str) -> Made:
    model, folder = checkpoint_of(job.source, job.work).absolute(), job.work.absolute()
    options = {"model": str(model), "directory": str(folder), "precision": precision}
    return genai, options | {"longest": CONTEXT, "graph": True}


_PEERS: dict[Callable[..., Any], Callable[[Job, str], Made]] = {
    weights.ours: _ours,
    weights.llama_cpp: _llama_cpp,
    weights.genai: _genai,
}


def variant(name: str, job: Job) -> Variant:
    """The process that runs a row's model."""
    make, form = WAYS[name]
    plugin, options = _PEERS[make](job, form)
    python = Path(sys.executable) if make is weights.ours else job.peers
    return Variant(
        name, 0, python, str(plugin.__file__), options | {"threads": THREADS}, (CONTEXT,)
    )


def measured(variants: Sequence[Variant], rounds: int) -> dict[str, dict[str, float]]:
    """{name: quartiles of milliseconds a step}. The first round warms up."""
    with ExitStack() as stack:
        workers = {one.name: Worker(one) for one in variants}
        for worker in workers.values():
            stack.callback(worker.close)
            worker.ask("fill", context=CONTEXT)
        took: dict[str, list[list[float]]] = {name: [] for name in workers}
        for _ in range(rounds + 1):
            for name, worker in workers.items():
                took[name].append([1e3 * worker.ask("step") for _ in range(STEPS)])
    return {name: _quartiles(some[1:]) for name, some in took.items()}


def _quartiles(times: Sequence[Sequence[float]]) -> dict[str, float]:
    low, middle, high = np.quantile(np.ravel(times), (0.25, 0.5, 0.75))
    named = {"low": low, "median": middle, "high": high}
    return {name: round(float(value), 2) for name, value in named.items()}


def main() -> None:
    """Print a line for each row of the result, and write them into it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--peers-python", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    source, nothing = reordered(given.file, given.work), np.zeros((0, 0), np.int64)
    job = Job(given.file, source, given.work, nothing, given.peers_python)
    report = json.loads(given.out.read_text())
    report["steps"] = {
        "context": CONTEXT,
        "rounds": given.rounds,
        "load_before": os.getloadavg()[0],
    }
    rows = {row["weights"]: row for row in report["rows"]}
    for name, took in measured([variant(name, job) for name in rows], given.rounds).items():
        print(json.dumps({"weights": name, "step_ms": took}), flush=True)
        rows[name]["step_ms"] = took
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
