"""Compares answers about prompts that were taken in chunks and in blocks, from caches of one size.

usage: python -m tools.studies.quality.blocks BUILD --documents FOLDER ... [--out FILE]

BUILD has --baseline and --extend, and its own budget. Both ways take the same prompts, whose
question comes last. Prints the sum of the scores for each task and way, and writes them.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from snapexport.contract.build_directory import Build
from snapexport.measure.eval.grid import make_grid
from snapexport.measure.options import EvalOptions
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams

WAYS: tuple[Literal["chunks", "blocks"], ...] = ("chunks", "blocks")
Score = tuple[str, str, float]
"""The task, the way, and how right the answer is, from 0 to 1."""


def measured(build: Path, options: EvalOptions, running: dict[str, Any]) -> Iterator[Score]:
    """The score of each prompt and way."""
    requests = make_grid(Build.open(build), options).requests
    cells = requests.cells()
    samples = [requests.sample(cell) for cell in cells]
    asked = [requests.request(*pair, "aware").prompt for pair in zip(samples, cells, strict=True)]
    limits = [SamplingParams(max_tokens=one.max_tokens) for one in samples]
    for way in WAYS:
        answers = LLM(build, prefill=way, **running).generate(asked, limits)
        for cell, sample, answer in zip(cells, samples, answers, strict=True):
            yield cell.task, way, sample.score(answer.text)


def main() -> None:
    """Answer every prompt both ways, and print a line for each task and way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--tasks", nargs="+", default=["niah_single"])
    parser.add_argument("--length", type=int, default=4000)
    parser.add_argument("--samples", type=int, default=4, help="of a task at each of five depths")
    parser.add_argument("--seed", type=int, default=700)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--precision")
    parser.add_argument("--out", type=Path, help="results as JSON, added to those that are there")
    given = parser.parse_args()
    options = EvalOptions(
        tasks=tuple(given.tasks),
        lengths=(given.length,),
        depths=(0.1, 0.3, 0.5, 0.7, 0.9),
        samples=given.samples,
        modes=("aware",),
        policies=("full", "snapstream"),
        documents=tuple(given.documents),
        continuation=0,
        seed=given.seed,
    )
    running = {"backend": given.backend, "precision": given.precision}
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for task, way, score in measured(given.build, options, running):
        scores[task, way].append(score)
    slots = Build.open(given.build).manifest.geometry.layers[0].size
    labels = {"build": given.build.name, "length": given.length, "slots": slots}
    report = json.loads(given.out.read_text()) if given.out and given.out.is_file() else []
    for (task, way), found in scores.items():
        row = labels | {"task": task, "way": way, "found": sum(found), "prompts": len(found)}
        print(json.dumps(row))
        report.append(row)
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
