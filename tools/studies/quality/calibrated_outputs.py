"""Simulates votes along a long output, which is compressed again every few tokens.

usage: python -m tools.studies.quality.calibrated_outputs CHECKPOINT BUILD --calibration FILE ...
       --documents FOLDER ... [--out FILE]

Real text stands for the output. transformers reads prompt and output once; from these queries, keys
and values each choice finds what a layer keeps at each compression, of what it kept before and what
has left the ring. A second run over the output sees that alone. Prints the nats a token that are
lost against the full cache, with the standard error over passages. The scores are those of
calibrated_votes.py; BUILD gives the tokenizer and the cache.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from snapexport.contract.build_directory import Build
from snapexport.contract.slots import LayerGeometry
from snapexport.measure.eval.grid import Grid, make_grid
from snapexport.measure.options import EvalOptions
from tools.studies.quality import vote_variants as simulated
from tools.studies.quality.calibrated_votes import (
    WINDOW,
    Queries,
    calibrated,
    choices,
    first_tokens,
    folder_and_theta,
)
from tools.studies.quality.vote_variants import Heads, Model, Row, Sample, best

UNCOMPRESSED = "the output is not compressed"


def until(heads: Heads, end: int, window: int) -> Heads:
    """The states before position `end`, with the last queries; `heads` has all queries."""
    queries = heads.queries[:, end - window : end]
    return Heads(queries, heads.keys[:, :end], heads.values[:, :end], heads.scale)


def along(
    heads: Heads, layer: LayerGeometry, known: Queries, theta: float, given: argparse.Namespace
) -> dict[str, Tensor]:
    """What each token of an output attends to, by choice: bool [Hkv,count,L+count]."""
    total = heads.keys.shape[1] - 1
    masks: dict[str, list[Tensor]] = {}
    kept: dict[str, Tensor] = {}
    for end in range(given.prompt, total, given.every):
        now, rows = until(heads, end, given.window), min(given.every, total - end)
        scores = dict(choices(now, layer, known, theta))
        for name in (UNCOMPRESSED, *scores):
            one = scores.get(name, scores[WINDOW])
            if name not in kept:
                kept[name] = best(one, layer.K)
            else:
                left = one.shape[1] - kept[name].shape[1]
                seen = pad(kept[name], (0, left), value=name != UNCOMPRESSED)
                kept[name] = best(one.masked_fill(~seen, -torch.inf), layer.K)
            mask = simulated.held(now, layer, kept[name], rows)
            masks.setdefault(name, []).append(pad(mask, (0, total - mask.shape[-1])))
    return {name: torch.cat(each, 1) for name, each in masks.items()}


def measured(
    model: Model,
    grid: Grid,
    sample: Sample,
    known: list[Queries],
    theta: float,
    given: argparse.Namespace,
) -> Iterator[Row]:
    """A row for the full cache, then for each choice."""
    (system,) = (one for one in grid.systems if one.name != "full")
    states, count = model.prefill(sample.prompt + sample.rest), len(sample.rest) - 1
    model.prefill(sample.prompt)
    every = torch.ones(count, len(sample.prompt) + count, dtype=torch.bool)
    causal = every.tril(len(sample.prompt))[None]
    yield simulated.row(sample, "full", 0, model.losses(sample.rest, [causal] * len(states)))
    masks: dict[str, list[Tensor]] = {}
    for heads, layer, queries in zip(states, system.geometry.layers, known, strict=True):
        for name, mask in along(heads, layer, queries, theta, given).items():
            masks.setdefault(name, []).append(mask)
    for name, each in masks.items():
        yield simulated.row(sample, name, system.slots, model.losses(sample.rest, each))


def main() -> None:
    """Calibrate, then measure every passage and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a folder for transformers, or a GGUF file")
    parser.add_argument("build", type=Path)
    parser.add_argument("--calibration", type=Path, nargs="+", required=True)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, default=2048, help="of the calibration texts")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=1024, help="tokens of an output")
    parser.add_argument("--every", type=int, default=128, help="tokens between compressions")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--out", type=Path, help="rows as JSON, written after each passage")
    given = parser.parse_args()
    options = EvalOptions(
        lengths=(given.prompt,),
        policies=("full", "snapstream"),
        budgets=(given.budget,),
        documents=tuple(given.documents),
        passages=given.passages,
        continuation=given.output,
    )
    grid = make_grid(Build.open(given.build), options)
    checkpoint, theta = folder_and_theta(given.checkpoint)
    ids = first_tokens(grid, given.calibration, given.tokens)
    model = Model(checkpoint, given.tokens + given.prompt + given.output)
    known = calibrated(model.prefill(ids), theta)
    rows: list[Row] = []
    for prompt in grid.requests.prompts:
        passage = Sample("text", prompt.passage.name, prompt.prompt_ids, prompt.continuation_ids)
        rows += measured(model, grid, passage, known, theta, given)
        if given.out:
            given.out.write_text(json.dumps(rows, indent=0) + "\n")
    print("\n".join(simulated.table(rows)))


if __name__ == "__main__":
    main()
