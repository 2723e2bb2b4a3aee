"""Simulates votes that know queries from other texts, for questions that come after compression.

usage: python -m tools.studies.quality.calibrated_votes CHECKPOINT BUILD --calibration FILE ...
       [--out FILE]

transformers reads a prompt without its question. Each choice hides what it does not keep; question
and right answer follow, and the answer's nats are summed. Prints what is lost against the full
cache, with the standard error over samples. Two scores of a cached key k come from the mean E q and
the mean magnitudes E|q_f| of queries before RoPE, over the calibration texts:

    trigonometric  k . q_s + sum_f (E|q_f| - |E q_f|) |k_f|   (TriAttention, arXiv:2604.04921)
    expected       exp(k . q_e / sqrt(D)) |v|                 (Expected Attention, arXiv:2510.00636)

q_s is the mean of RoPE(E q) over the positions 1, 2, 4 ... 65,536 behind the prompt, q_e over the
next 512. The heads of a group are joined by the largest standard score, or by the mean.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from snapexport.compare.documents import read_documents
from snapexport.contract.build_directory import Build
from snapexport.contract.slots import LayerGeometry
from snapexport.measure.eval.grid import Grid, make_grid
from snapexport.measure.options import EvalOptions
from tools.studies.quality import vote_variants as simulated
from tools.studies.quality.vote_variants import Heads, Model, Row, Sample, best, pooled, scored
from tools.studies.speed.from_gguf import checkpoint_of

FAR = tuple(1 << n for n in range(17))
NEAR = tuple(range(1, 513))
VOTE = {"vote": "sum-squares", "softmax": "causal"}
WINDOW = "the window's vote"


@dataclass(frozen=True)
class Queries:
    """A layer's queries before RoPE. mean: complex [H,D/2]. magnitude: [H,D/2]."""

    mean: Tensor
    magnitude: Tensor


def turns(positions: Sequence[int], dim: int, theta: float) -> Tensor:
    """RoPE's factor of each position and pair, complex [N,D/2]."""
    speeds = theta ** (-torch.arange(0, dim, 2).double() / dim)
    angles = torch.tensor(positions).double()[:, None] * speeds
    return torch.polar(torch.ones_like(angles), angles)


def pairs(states: Tensor) -> Tensor:
    """States [...,D] as RoPE's pairs, complex [...,D/2]: a half holds the other's partners."""
    first, second = states.double().chunk(2, -1)
    return torch.complex(first, second)


def calibrated(layers: Sequence[Heads], theta: float) -> list[Queries]:
    """The queries of each layer over a text whose window is the whole of it."""
    found = []
    for heads in layers:
        back = turns(range(heads.queries.shape[1]), heads.queries.shape[-1], theta).conj()
        before = pairs(heads.queries) * back
        found.append(Queries(before.mean(1), before.abs().mean(1)))
    return found


def dots(heads: Heads, layer: LayerGeometry, mean: Tensor, after: Tensor) -> Tensor:
    """k . RoPE(E q) by query head, [H,n]. after: the mean turn of the positions behind."""
    keys = eligible(heads.keys, heads, layer)
    group = mean.shape[0] // keys.shape[0]
    wanted = (mean * after).conj()
    return (pairs(keys).repeat_interleave(group, 0) * wanted[:, None]).real.sum(-1)


def eligible(states: Tensor, heads: Heads, layer: LayerGeometry) -> Tensor:
    """The states of the positions that can be kept."""
    return states[:, simulated.span(heads, layer).start : simulated.span(heads, layer).stop]


def trigonometric(heads: Heads, layer: LayerGeometry, known: Queries, theta: float) -> Tensor:
    """TriAttention's scores [Hkv,n]."""
    length, dim = heads.keys.shape[1:]
    after = turns([length - 1 + step for step in FAR], dim, theta).mean(0)
    scores = dots(heads, layer, known.mean, after)
    sizes = pairs(eligible(heads.keys, heads, layer)).abs()
    group = scores.shape[0] // sizes.shape[0]
    free = (known.magnitude - known.mean.abs())[:, None]
    scores = scores + (sizes.repeat_interleave(group, 0) * free).sum(-1)
    return standard(scores).reshape(-1, group, scores.shape[-1]).amax(1)


def attention_to(heads: Heads, layer: LayerGeometry, known: Queries, theta: float) -> Tensor:
    """The attention [Hkv,n] that the mean query pays, of the positions that can be kept."""
    length, dim = heads.keys.shape[1:]
    after = turns([length - 1 + step for step in NEAR], dim, theta).mean(0)
    attention = (dots(heads, layer, known.mean, after) * heads.scale).softmax(-1)
    return attention.reshape(heads.keys.shape[0], -1, attention.shape[-1]).mean(1)


def expected(heads: Heads, layer: LayerGeometry, known: Queries, theta: float) -> Tensor:
    """Expected Attention's scores [Hkv,n], from means alone."""
    norms = eligible(heads.values, heads, layer).double().square().sum(-1).sqrt()
    return attention_to(heads, layer, known, theta) * norms


def standard(scores: Tensor) -> Tensor:
    """Scores less their mean, in standard deviations, by head."""
    return (scores - scores.mean(-1, keepdim=True)) / scores.std(-1, keepdim=True)


def choices(
    heads: Heads, layer: LayerGeometry, known: Queries, theta: float
) -> Iterator[tuple[str, Tensor]]:
    """Names and scores, [Hkv,n]."""
    vote = scored(heads, layer, pool_kernel=31, **VOTE)
    yield WINDOW, vote
    yield f"{WINDOW}, not pooled", scored(heads, layer, pool_kernel=1, **VOTE)
    yield "expected, without norms", attention_to(heads, layer, known, theta)
    for name, scores in (("trigonometric", trigonometric), ("expected", expected)):
        one = scores(heads, layer, known, theta)
        yield name, one
        yield f"{name}, pooled", pooled(one)
        yield f"{WINDOW} + {name}, pooled", standard(vote) + standard(pooled(one))


def late(grid: Grid) -> Iterator[tuple[Sample, int]]:
    """Contexts, what follows them, and how many of its tokens are the answer."""
    for number, cell in enumerate(grid.requests.cells()):
        one = grid.requests.sample(cell)
        rest = one.question_ids + one.reference_ids
        yield Sample(cell.task, str(number), one.context_ids, rest), len(one.reference_ids)


def measured(
    model: Model, grid: Grid, sample: Sample, answer: int, known: list[Queries], theta: float
) -> Iterator[Row]:
    """A row for the full cache, then for each choice."""

    def nats(masks: list[Tensor]) -> list[float]:
        return model.losses(sample.rest, masks)[-answer:]

    prefilled, count = model.prefill(sample.prompt), len(sample.rest) - 1
    every = torch.ones(count, len(sample.prompt) + count, dtype=torch.bool)
    causal = every.tril(len(sample.prompt))[None]
    yield simulated.row(sample, "full", 0, nats([causal] * len(prefilled)))
    for system in grid.systems:
        if system.name == "full":
            continue
        masks: dict[str, list[Tensor]] = {}
        for heads, layer, queries in zip(prefilled, system.geometry.layers, known, strict=True):
            for name, scores in choices(heads, layer, queries, theta):
                kept = best(scores, layer.K)
                masks.setdefault(name, []).append(simulated.held(heads, layer, kept, count))
            none = torch.zeros_like(kept)
            masks.setdefault("no vote", []).append(simulated.held(heads, layer, none, count))
        for name, each in masks.items():
            yield simulated.row(sample, name, system.slots, nats(each))


def folder_and_theta(checkpoint: Path) -> tuple[Path, float]:
    """A folder for transformers, which is made of a GGUF file, and its RoPE's base."""
    if checkpoint.suffix == ".gguf":
        checkpoint = checkpoint_of(checkpoint, checkpoint.parent / "checkpoints")
    config = json.loads((checkpoint / "config.json").read_text())
    return checkpoint, float((config.get("rope_parameters") or config)["rope_theta"])


def first_tokens(grid: Grid, texts: Sequence[Path], count: int) -> list[int]:
    """Of texts, joined."""
    text = "".join(document.text for document in read_documents(texts))
    ids: list[int] = grid.requests.tokenizer.encode(text).ids
    return ids[:count]


def main() -> None:
    """Calibrate, then measure every sample and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a folder for transformers, or a GGUF file")
    parser.add_argument("build", type=Path)
    parser.add_argument("--calibration", type=Path, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, default=2048, help="of the calibration texts")
    parser.add_argument("--tasks", nargs="+", default=["niah_single", "qa"])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--budgets", type=int, nargs="+", default=[256])
    parser.add_argument("--samples", type=int, default=1, help="of a task at each of five depths")
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--out", type=Path, help="rows as JSON, written after each sample")
    given = parser.parse_args()
    options = EvalOptions(
        tasks=tuple(given.tasks),
        lengths=(given.length,),
        depths=(0.1, 0.3, 0.5, 0.7, 0.9),
        samples=given.samples,
        modes=("agnostic",),
        policies=("full", "snapstream"),
        budgets=tuple(given.budgets),
        seed=given.seed,
    )
    grid = make_grid(Build.open(given.build), options)
    checkpoint, theta = folder_and_theta(given.checkpoint)
    ids = first_tokens(grid, given.calibration, given.tokens)
    known = calibrated(Model(checkpoint, len(ids)).prefill(ids), theta)
    model = Model(checkpoint, grid.build.manifest.geometry.vote.L_obs)
    rows: list[Row] = []
    for sample, answer in late(grid):
        rows += measured(model, grid, sample, answer, known, theta)
        if given.out:
            given.out.write_text(json.dumps(rows, indent=0) + "\n")
    print("\n".join(simulated.table(rows)))


if __name__ == "__main__":
    main()
