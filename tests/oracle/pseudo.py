"""Computes what a build keeps if tokens after a prompt vote: transformers' model, fed with them.

They are pseudo tokens, or the prompt once more. They stand after the prompt in transformers' own
full cache, which then forgets them. Knows no graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache

from snapexport.contract.geometry import CacheGeometry

from . import masked
from .masked import Memory, OracleRun, Scoring
from .routing import watched
from .vote import eligible, gap, keep, vote


@dataclass
class VotedBehind(Memory):
    """Pseudo tokens vote on the prompt before them. behind: fed now; 0: none are."""

    behind: int = 0

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        total = key.shape[1]
        if self.behind:
            self.take_votes(layer, query, key, scoring)
        if self.behind or total == self.prompt_length:
            return masked.causal(query.shape[1], total)[None]
        return self.visible_in_decode(layer, total - 1)[:, None]

    def take_votes(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        shape, before = self.geometry.layers[layer], key[:, : self.prompt_length]
        self.decide(layer, vote(query, before, shape, self.geometry, *scoring))

    def decide(self, layer: int, scores: Tensor) -> None:
        shape = self.geometry.layers[layer]
        self.kept[layer], self.gaps[layer] = keep(scores, shape), gap(scores, shape.K)


@dataclass
class VotedAgain(VotedBehind):
    """A position is worth the largest attention that any token of the repeated prompt gives it.

    largest: of each layer, float64 [H, L], for all repeated chunks so far.
    """

    largest: dict[int, Tensor] = field(default_factory=dict)

    def take_votes(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        shape, sets = self.geometry.layers[layer], 1 if scoring.one_set else len(key)
        key = key.double().repeat_interleave(len(query) // len(key), 0)
        query = query.double()
        scores = query @ key.mT * scoring.scaling
        if scoring.softcap:
            scores = scoring.softcap * (scores / scoring.softcap).tanh()
        hidden = ~masked.causal(query.shape[1], key.shape[1])
        attention = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        largest = attention.amax(1)[:, : self.prompt_length]
        largest = torch.maximum(largest, self.largest.get(layer, torch.zeros(())))
        self.largest[layer] = largest
        of_sets = largest.reshape(sets, -1, self.prompt_length).amax(1)
        span = eligible(shape, self.prompt_length)
        self.decide(layer, self._pooled(of_sets[:, span.start : span.stop]))

    def _pooled(self, votes: Tensor) -> Tensor:
        width = self.geometry.vote.pool_kernel
        if not votes.shape[1]:
            return votes
        windows = torch.nn.functional.pad(votes, (width // 2, width // 2)).unfold(1, width, 1)
        return windows.mean(-1) if self.geometry.vote.pool == "avg" else windows.amax(-1)


def run(
    model_dir: Path,
    prompt: Sequence[int],
    pseudo_tokens: Sequence[int],
    geometry: CacheGeometry,
    steps: int,
) -> OracleRun:
    """Prefill `prompt`, let `pseudo_tokens` vote and forget them, then decode `steps` tokens."""
    memory = VotedBehind(geometry, len(prompt))
    return _run(model_dir, prompt, [pseudo_tokens], memory, steps)


def run_repeated(
    model_dir: Path,
    prompt: Sequence[int],
    chunks: Sequence[Sequence[int]],
    geometry: CacheGeometry,
    steps: int,
) -> OracleRun:
    """The same of the prompt's repetition, one chunk after the other at the prompt's end."""
    return _run(model_dir, prompt, chunks, VotedAgain(geometry, len(prompt)), steps)


def _run(
    model_dir: Path,
    prompt: Sequence[int],
    chunks: Sequence[Sequence[int]],
    memory: VotedBehind,
    steps: int,
) -> OracleRun:
    model, past = masked.load(model_dir, masked.MASKED), DynamicCache()
    with watched(model) as routing:
        first = masked.fed(model, past, prompt, memory)
        for chunk in chunks:
            memory.behind = len(chunk)
            masked.fed(model, past, chunk, memory)
            past.crop(-len(chunk))
        memory.behind = 0
        logits = masked.greedy(model, past, first, steps, memory)
    return OracleRun(tuple(prompt), logits, routing.clear, *memory.votes())
