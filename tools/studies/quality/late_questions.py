"""Tells what a compressed cache loses of an answer whose question comes after compression.

usage: python -m tools.studies.quality.late_questions BUILD --documents FILE ... [--out FILE]

A task's text is the prompt. Its question and the right answer are given behind it, and the negative
log likelihood of the answer is summed. Prints its mean for each cache, beyond the full cache's,
with the standard error over samples. BUILD has --baseline, so that other caches are derived of it.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from snapexport.builder.derive import derive
from snapexport.contract.build_directory import Build
from snapexport.measure.eval.grid import Grid, make_grid
from snapexport.measure.eval.systems import System
from snapexport.measure.options import EvalOptions
from snapexport.runtime.requests.llm import LLM

POLICIES = (
    "full",
    "streaming",
    "snapstream",
    "snapstream:vote_queries=pseudo",
    "snapstream:vote_queries=repeat",
)


def losses(grid: Grid, system: System, threads: int | None) -> list[float]:
    """Of each sample, the answer's negative log likelihood."""
    samples = [grid.requests.sample(cell) for cell in grid.requests.cells()]
    prompts = [list(one.context_ids) for one in samples]
    rests = [[*one.question_ids, *one.reference_ids] for one in samples]
    with tempfile.TemporaryDirectory() as folder:
        build = derive(grid.build, system.geometry, Path(folder) / "build", link_weights=True)
        llm = LLM(build.directory, threads=threads)
        scores = llm.score(prompts, rests)
        llm.executor.close()
    return [
        -sum(score.logprobs[-len(sample.reference_ids) :])
        for score, sample in zip(scores, samples, strict=True)
    ]


def beyond(found: Sequence[float], full: Sequence[float]) -> str:
    """Such as "+8.1 (1.2)": the mean difference and its standard error."""
    each = [one - other for one, other in zip(found, full, strict=True)]
    error = statistics.stdev(each) / math.sqrt(len(each))
    return f"{statistics.fmean(each):+.1f} ({error:.1f})"


def main() -> None:
    """Score the same answers over every cache."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--task", default="niah_single")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--budgets", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--samples", type=int, default=4, help="at each of five depths")
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="results as JSON")
    given = parser.parse_args()
    options = EvalOptions(
        tasks=(given.task,),
        lengths=(given.length,),
        depths=(0.1, 0.3, 0.5, 0.7, 0.9),
        samples=given.samples,
        modes=("agnostic",),
        policies=tuple(given.policies),
        budgets=tuple(given.budgets),
        documents=tuple(given.documents),
        continuation=0,
        seed=given.seed,
    )
    grid = make_grid(Build.open(given.build), options)
    results: dict[str, list[float]] = {}
    for system in grid.systems:
        name = f"{system.name} {system.slots}"
        results[name] = losses(grid, system, given.threads)
        full = results[next(iter(results))]
        mean = f"{statistics.fmean(full):.1f}"
        print(name, "|", mean if system.name == "full" else beyond(results[name], full))
        sys.stdout.flush()
        if given.out:
            record = {"task": given.task, "length": given.length, "losses": results}
            given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
