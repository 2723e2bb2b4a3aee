"""Simulates ways of choosing what a cache keeps, those that the product lacks among them.

usage: python -m tools.studies.quality.vote_variants CHECKPOINT BUILD --documents FILE ...
       [--out FILE]

transformers prefills a prompt once. Each choice then hides, per layer and KV head, what it does not
keep, and the right answer of a needle, or the text that follows a passage, is fed behind the
prompt. Prints by choice and slots: the nats that are lost of it against the full cache, of a whole
answer and of a token of text, with the standard error over samples. BUILD has --baseline, and gives
the tokenizer, the window, sinks and the ring's share.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d, scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache

from snapexport.contract.build_directory import Build
from snapexport.contract.slots import LayerGeometry
from snapexport.measure.eval.grid import Grid, make_grid
from snapexport.measure.options import EvalOptions
from snapexport.plugins.reference import Vote
from tools.studies.speed.from_gguf import checkpoint_of

_WATCHED, _TEXT = "watched", "text"
_P = 31
_SAFEGUARD = 0.2


@dataclass(frozen=True)
class Heads:
    """A layer's states of a prompt. queries [H,W,D]: of the window; keys, values [Hkv,L,D]."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float


@dataclass
class Watch:
    """What attention notes in prefill, and what it sees behind the prompt.

    window: queries to note. layers: noted. held: by layer, bool [Hkv,Q,N]; None in prefill.
    """

    window: int
    layers: list[Heads] = field(default_factory=list)
    held: list[Tensor] | None = None


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    watch: Watch,
    **_: Any,
) -> tuple[Tensor, None]:
    """One request: query [1,H,Q,D], key and value [1,Hkv,N,D] -> [1,Q,H,D]."""
    heads = query.shape[1]
    if watch.held is None:
        window = query[0, :, -watch.window :].clone()
        watch.layers.append(Heads(window, key[0].clone(), value[0].clone(), scaling))
        options: dict[str, Any] = {"is_causal": True}
    else:
        held = watch.held[module.layer_idx]
        options = {"attn_mask": held.repeat_interleave(heads // held.shape[0], 0)[None]}
    out = scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=True, **options)
    return out.transpose(1, 2), None


Choice = Callable[[Heads, LayerGeometry, Sequence[str]], Tensor]
"""Which positions a layer keeps: bool [Hkv,n] of the eligible ones, whose tokens are given."""


def span(heads: Heads, layer: LayerGeometry) -> range:
    """The eligible positions."""
    return range(layer.L_sink, layer.L_sink + layer.eligible(heads.keys.shape[1]))


def scored(heads: Heads, layer: LayerGeometry, **options: Any) -> Tensor:
    """The product's own scores [Hkv,n]."""
    return Vote(scale=heads.scale, **options).scores(heads.queries, heads.keys, span(heads, layer))


def best(scores: Tensor, count: int) -> Tensor:
    """Bool [Hkv,n]: the largest of each head."""
    chosen = scores.topk(min(count, scores.shape[1]), dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)


def pooled(votes: Tensor, width: int = _P) -> Tensor:
    """The mean of each vote and its neighbours, [Hkv,n]."""
    return avg_pool1d(votes[:, None], width, 1, width // 2)[:, 0]


def by_vote(heads: Heads, layer: LayerGeometry, tokens: Sequence[str], **options: Any) -> Tensor:
    """The product's vote; its options are P = 31 and the sum of attention unless given."""
    return best(scored(heads, layer, **({"pool_kernel": _P} | options)), layer.K)


def by_value(heads: Heads, layer: LayerGeometry, tokens: Sequence[str]) -> Tensor:
    """Votes times the L1 norms of values (VATP, arXiv:2406.12335)."""
    inside = slice(layer.L_sink, layer.L_sink + len(tokens))
    norms = heads.values[:, inside].double().abs().sum(-1)
    return best(pooled(scored(heads, layer, pool_kernel=1) * norms), layer.K)


def by_part(
    heads: Heads,
    layer: LayerGeometry,
    tokens: Sequence[str],
    *,
    size: int | None,
    largest: bool = False,
) -> Tensor:
    """Whole parts, best first, until the slots are full; the last one is cut.

    size: tokens of a chunk (ChunkKV, arXiv:2502.00299); None: parts are sentences. A part's score
    is its votes' mean, or the largest.
    """
    votes = scored(heads, layer, pool_kernel=1)
    part = torch.tensor(list(chunks(len(tokens), size) if size else sentences(tokens)))
    count = int(part.max()) + 1
    index = part.expand_as(votes)
    zeros = votes.new_zeros(votes.shape[0], count)
    how = "amax" if largest else "mean"
    scores = zeros.scatter_reduce(1, index, votes, how, include_self=False)
    return best(scores.gather(1, index) - torch.arange(len(tokens)) * 1e-12, layer.K)


def chunks(count: int, size: int) -> Iterator[int]:
    """Of each token, the number of its chunk."""
    return (index // size for index in range(count))


def sentences(tokens: Sequence[str]) -> Iterator[int]:
    """Of each token, the number of its sentence or line."""
    number = 0
    for token in tokens:
        yield number
        number += token.rstrip(" ").endswith((".", "!", "?", "\n"))


def by_growing_kernel(heads: Heads, layer: LayerGeometry, tokens: Sequence[str]) -> Tensor:
    """A vote reaches as far as it is large: the top 1 % 31 positions to each side, others fewer."""
    votes = scored(heads, layer, pool_kernel=1)
    rank = votes.argsort(descending=True).argsort().double() / votes.shape[1]
    reached = votes
    for share, reach in ((0.2, 3), (0.05, 15), (0.01, 31)):
        top = votes.where(rank < share, 0)
        reached = reached.maximum(max_pool1d(top[:, None], 2 * reach + 1, 1, reach)[:, 0])
    return best(reached, layer.K)


def by_head(heads: Heads, layer: LayerGeometry, tokens: Sequence[str]) -> Tensor:
    """The slots of a layer's heads are shared, but for a fifth (AdaKV, arXiv:2407.11550)."""
    scores = scored(heads, layer, pool_kernel=_P)
    own = best(scores, int(layer.K * _SAFEGUARD))
    rest = scores.masked_fill(own, -1).reshape(1, -1)
    left = layer.K * scores.shape[0] - int(own.sum())
    return own | best(rest, left).reshape(own.shape)


def nothing(heads: Heads, layer: LayerGeometry, tokens: Sequence[str]) -> Tensor:
    """Sinks and ring alone, with half of the slots."""
    return torch.zeros(heads.keys.shape[0], len(tokens), dtype=torch.bool)


CHOICES: dict[str, Choice] = {
    "summed votes": by_vote,
    "causal softmax": partial(by_vote, softmax="causal"),
    "maximum over a group's heads": partial(by_vote, group="max"),
    "squared votes": partial(by_vote, vote="sum-squares"),
    "squared votes, causal softmax": partial(by_vote, vote="sum-squares", softmax="causal"),
    "squared votes, maximum over a group's heads": partial(
        by_vote, vote="sum-squares", group="max"
    ),
    "P = 7": partial(by_vote, pool_kernel=7),
    "P = 63": partial(by_vote, pool_kernel=63),
    "value norms": by_value,
    "chunks of 16": partial(by_part, size=16),
    "chunks of 32": partial(by_part, size=32),
    "chunks of 32, largest vote": partial(by_part, size=32, largest=True),
    "sentences": partial(by_part, size=None),
    "sentences, largest vote": partial(by_part, size=None, largest=True),
    "growing kernel": by_growing_kernel,
    "slots shared by a layer's heads": by_head,
    "no vote": nothing,
}


@dataclass(frozen=True)
class Sample:
    """Token ids: a prompt, and what is fed behind it. kind: the task, or "text"."""

    kind: str
    name: str
    prompt: tuple[int, ...]
    rest: tuple[int, ...]


def samples(grid: Grid) -> Iterator[Sample]:
    """Each task's needles with their right answers, then passages with their texts."""
    for number, cell in enumerate(grid.requests.cells()):
        one = grid.requests.sample(cell)
        yield Sample(cell.task, str(number), one.context_ids + one.question_ids, one.reference_ids)
    for prompt in grid.requests.prompts:
        yield Sample(_TEXT, str(prompt.passage.name), prompt.prompt_ids, prompt.continuation_ids)


def held(heads: Heads, layer: LayerGeometry, kept: Tensor, count: int) -> Tensor:
    """Bool [Hkv,count,L+count]: what each of `count` tokens behind the prompt attends to."""
    length = heads.keys.shape[1]
    every, now = torch.arange(length + count), length + torch.arange(count)[:, None]
    sink = every < layer.L_sink
    ring = ~sink & (every <= now) & (every > now - len(layer.ring(length)))
    voted = torch.zeros(kept.shape[0], length + count, dtype=torch.bool)
    voted[:, layer.L_sink : layer.L_sink + kept.shape[1]] = kept
    return (sink | ring) | voted[:, None]


class Model:
    """transformers' model, with one prompt in its cache."""

    def __init__(self, checkpoint: Path, window: int) -> None:
        AttentionInterface.register(_WATCHED, attend)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation=_WATCHED
        ).eval()
        self._window = window

    def prefill(self, prompt: Sequence[int]) -> list[Heads]:
        """The prompt's states by layer."""
        self._past, watch = DynamicCache(), Watch(self._window)
        self._run(prompt, watch)
        return watch.layers

    def losses(self, rest: Sequence[int], masks: list[Tensor]) -> list[float]:
        """Nats of each token of the rest but the first, which prefill predicts."""
        logits = self._run(rest[:-1], Watch(self._window, held=masks))
        self._past.crop(1 - len(rest))
        wanted = torch.tensor(rest[1:])[:, None]
        found: list[float] = (-logits.log_softmax(-1).gather(1, wanted)[:, 0]).tolist()
        return found

    @torch.no_grad()
    def _run(self, ids: Sequence[int], watch: Watch) -> Tensor:
        keep = 1 if watch.held is None else len(ids)
        out = self._model(
            torch.tensor([ids]),
            past_key_values=self._past,
            use_cache=True,
            logits_to_keep=keep,
            watch=watch,
        )
        logits: Tensor = out.logits[0].double()
        return logits


Row = dict[str, Any]


def measured(model: Model, grid: Grid, sample: Sample, choices: Sequence[str]) -> Iterator[Row]:
    """A row for the full cache, then for each choice and number of slots."""
    prefilled, count = model.prefill(sample.prompt), len(sample.rest) - 1
    systems = {one.slots: one.geometry for one in grid.systems if one.name != "full"}
    tokens = [grid.requests.tokenizer.decode([one]) for one in sample.prompt]
    everything = torch.ones(count, len(sample.prompt) + count, dtype=torch.bool)
    causal = everything.tril(len(sample.prompt))[None]
    yield row(sample, "full", 0, model.losses(sample.rest, [causal] * len(prefilled)))
    for slots, geometry in systems.items():
        for name in choices:
            masks = []
            for heads, layer in zip(prefilled, geometry.layers, strict=True):
                inside = tokens[layer.L_sink : layer.L_sink + layer.eligible(len(tokens))]
                kept = CHOICES[name](heads, layer, inside)
                masks.append(held(heads, layer, kept, count))
            yield row(sample, name, slots, model.losses(sample.rest, masks))


def row(sample: Sample, name: str, slots: int, losses: list[float]) -> Row:
    """nats: summed over an answer, and a token's mean of a text."""
    nats = statistics.fmean(losses) if sample.kind == _TEXT else sum(losses)
    one = {"kind": sample.kind, "sample": sample.name, "choice": name, "slots": slots}
    return one | {"nats": round(nats, 5)}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each kind, choice and number of slots."""
    full = {(r["kind"], r["sample"]): r["nats"] for r in rows if r["choice"] == "full"}
    cells: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for one in rows:
        cells[one["kind"], one["choice"], one["slots"]].append(one)
    for (kind, choice, slots), found in cells.items():
        lost = [r["nats"] - full[kind, r["sample"]] for r in found]
        error = statistics.stdev(lost) / math.sqrt(len(lost)) if len(lost) > 1 else math.nan
        lost_mean = f"{statistics.fmean(lost):+.3f} ({error:.3f})"
        yield f"{kind} | {choice} | {slots or ''} | {lost_mean}, n = {len(lost)}"


def main() -> None:
    """Measure every sample, keeping the rows of each as it is done, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a folder for transformers, or a GGUF file")
    parser.add_argument("build", type=Path)
    parser.add_argument("--documents", type=Path, nargs="+", required=True)
    parser.add_argument("--length", type=int, default=2048, help="tokens of a prompt")
    parser.add_argument("--budgets", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--tasks", nargs="+", default=["niah_single"])
    parser.add_argument("--needles", type=int, default=4, help="of a task at each of five depths")
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--passages", type=int, default=20)
    parser.add_argument("--seed", type=int, default=200)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="rows as JSON, written after each sample")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    options = EvalOptions(
        tasks=tuple(given.tasks),
        lengths=(given.length,),
        depths=(0.1, 0.3, 0.5, 0.7, 0.9),
        samples=given.needles,
        modes=("aware",),
        policies=("full", "snapstream"),
        budgets=tuple(given.budgets),
        documents=tuple(given.documents),
        passages=given.passages,
        continuation=48,
        seed=given.seed,
    )
    grid = make_grid(Build.open(given.build), options)
    checkpoint: Path = given.checkpoint
    if checkpoint.suffix == ".gguf":
        checkpoint = checkpoint_of(checkpoint, checkpoint.parent / "checkpoints")
    model = Model(checkpoint, grid.build.manifest.geometry.vote.L_obs)
    rows: list[Row] = []
    for sample in samples(grid):
        rows += measured(model, grid, sample, given.choices)
        if given.out:
            given.out.write_text(json.dumps(rows, indent=0) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
