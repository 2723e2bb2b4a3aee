"""The expected answer of a build with recurrent states: one forward of transformers, in float64.

It takes the prompt and what follows at once, without a cache: transformers' own caches take other
positions for Bamba, and another step for Nemotron-H, than its forward does. Rows after the prompt
see what the compressed cache holds then. Knows no graph.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.pieces import BLOCK, Piece, pieces_of
from snapexport.runtime.engine.open_executor import open_executor

from . import cases, masked
from .cases import LOGITS, Case
from .masked import CLEAR_TOKEN, CLEAR_VOTE, MASKED, Memory, Scoring, causal, greedy_gap
from .turns import TurnMemory

STEPS = 12
"""Decode steps, unless a test says otherwise."""


@dataclass
class Rows:
    """What the rows of one forward see, in the prompt and after it."""

    memory: Memory
    voted: set[int] = field(default_factory=set)

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        """As `Memory.visible`, for all rows at once."""
        length, total = self.memory.prompt_length, key.shape[1]
        whole = self.memory.visible(layer, query[:, :length], key[:, :length], scoring)
        shown = causal(total, total).expand(key.shape[0], -1, -1).clone()
        shown[:, :length, :length] = whole
        if self.memory.geometry.policy != "full":
            for row in range(length, total):
                shown[:, row, : row + 1] = self.memory.visible_in_decode(layer, row)
        return shown


@dataclass(frozen=True)
class Answer:
    """logits [1 + N, V]: after a prompt and after each of N tokens. kept: by cache [Hkv,K]."""

    logits: NDArray[np.float32]
    kept: Sequence[NDArray[np.int64]] = ()


def answer(
    name: str, prompt: Sequence[int], more: Sequence[int], geometry: CacheGeometry
) -> Answer:
    """The answer of a named checkpoint to a prompt that tokens follow."""
    memory = Memory(geometry, len(prompt))
    logits = _logits(name, [*prompt, *more], Rows(memory))[len(prompt) - 1 :]
    return Answer(logits, memory.votes()[0] if geometry.compresses else ())


@torch.no_grad()
def _logits(name: str, ids: Sequence[int], memory: masked.Sees) -> NDArray[np.float32]:
    """[N, V], after each token of one forward without a cache."""
    token = masked._memory.set(memory)
    try:
        out = _model(name)(torch.tensor([[*ids]]), use_cache=False)
    finally:
        masked._memory.reset(token)
    logits: NDArray[np.float32] = out.logits[0].float().numpy()
    return logits


@cache
def _model(name: str) -> Any:
    """In float64: Qwen3-Next's forward in fp32 is 1e-3 off it at single tokens."""
    model = deepcopy(masked.load(cases.checkpoint(name), MASKED)).double()
    model.set_experts_implementation("eager")  # the others take no float64
    return model


@dataclass
class Again(TurnMemory):
    """A turn's forward takes all tokens anew: those of earlier turns see what they saw then."""

    seen: dict[int, Tensor] = field(default_factory=dict)

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        heads, total = key.shape[:2]
        before = self.seen.get(layer, torch.zeros((heads, 0, 0), dtype=torch.bool))
        done = before.shape[1]
        new = super().visible(layer, query[:, done:], key, scoring).expand(heads, -1, -1)
        whole = torch.cat([functional.pad(before, (0, total - done)), new], 1)
        stay = total - self.voters
        self.seen[layer] = whole[:, :stay, :stay]
        return whole


@dataclass(frozen=True)
class TurnsAnswer:
    """logits: after each turn, with its voters, and each greedy token. tokens: these."""

    turns: Sequence[Sequence[int]]
    logits: Sequence[NDArray[np.float32]]
    tokens: Sequence[int]
    gap: float

    @property
    def is_clear(self) -> bool:
        return greedy_gap(np.stack(self.logits)) > CLEAR_TOKEN and self.gap > CLEAR_VOTE


def _in_turns(
    name: str,
    turns: Sequence[Sequence[int]],
    voters: Sequence[int],
    geometry: CacheGeometry,
    steps: int,
) -> TurnsAnswer:
    memory, ids, logits = Again(geometry, turns), list[int](), []
    for turn, count in zip(turns, voters, strict=True):
        memory.voters, ids = count, [*ids, *turn]
        logits.append(_logits(name, [*ids, *ids_of_voters(turns, count)], memory)[-1])
    memory.voters, tokens = 0, []
    for _ in range(steps):
        tokens.append(int(logits[-1].argmax()))
        logits.append(_logits(name, [*ids, *tokens], memory)[-1])
    return TurnsAnswer(turns, logits, tokens, min(memory.gaps, default=1.0))


def ids_of_voters(turns: Sequence[Sequence[int]], count: int) -> Sequence[int]:
    """The last tokens of the last turn."""
    return turns[-1][len(turns[-1]) - count :]


@cache
def in_turns(
    name: str,
    lengths: tuple[int, ...],
    geometry: CacheGeometry,
    voters: tuple[int, ...] = (),
    steps: int = STEPS // 2,
) -> TurnsAnswer:
    """Random turns of these lengths whose answer is clear. voters: as in `turns.run`.

    A build has one number of them, or none after a turn that is a prompt's end.
    """
    for seed in range(50):
        turns = [cases.prompt(n, 100 * seed + at) for at, n in enumerate(lengths)]
        found = _in_turns(name, turns, voters or (0,) * len(turns), geometry, steps)
        if found.is_clear:
            return found
    raise AssertionError(f"no clear turns of {lengths}")


def require_turns_agree(
    case: Case, lengths: tuple[int, ...], voters: tuple[int, ...] = (), **options: Any
) -> float:
    """A prompt in turns, of which each goes on from a copy of the last one's row elsewhere."""
    build = cases.build_of(case)
    want = in_turns(case.checkpoint, lengths, build.manifest.geometry, voters)
    executor = open_executor(build, prefill="both", threads=1, **options)
    prompt = [token for turn in want.turns for token in turn]
    chunk, end, slot, errors = executor.limits.prefill_chunk, 0, 0, []
    for turn, count in zip(lengths, voters or (0,) * len(lengths), strict=True):
        begin, end = end, end + turn
        if turn > chunk or (end == turn and build.manifest.single_shot):
            work = pieces_of(turn, executor.limits.prefill)
        else:
            work = (Piece(BLOCK, begin, end, chunk, is_last=not count),)
        for piece in work:
            got = executor.take(slot, prompt if count else prompt[:end], piece).logits.copy()
        errors.append(np.abs(got - want.logits[len(errors)]).max())
        if not count and end < len(prompt):
            assert executor.parking
            row = executor.parking.park(slot, work[-1])
            slot = (slot + 1) % case.batch
            executor.parking.resume(slot, row)
    for step, token in enumerate(want.tokens):
        assert got.argmax() == token
        given = np.zeros((3, slot + 1), np.int64)
        given[:, slot] = token, end + step, end
        got = executor.decode(*given)[slot].logits.copy()
        errors.append(np.abs(got - want.logits[len(lengths) + step]).max())
    executor.close()
    assert max(errors) <= LOGITS, (case, errors)
    return float(max(errors))


def _by_cache(
    kept: Sequence[NDArray[np.int64]], geometry: CacheGeometry
) -> list[NDArray[np.int64]]:
    """The kept positions of each cache. kept: [Hkv,K] of each layer with caches."""
    by_layer = dict(zip(geometry.widest, kept, strict=False))
    return [
        by_layer[one.layer][slice(None) if one.heads is None else list(one.heads), : shape.K]
        for one, shape in zip(geometry.slots.caches, geometry.layers, strict=True)
        if one.layer in by_layer
    ]


def require_agreement(case: Case, lengths: Sequence[int], steps: int = STEPS) -> float:
    """Prompts in all batch slots, then tokens of all at once. Returns the largest difference."""
    build, errors = cases.build_of(case), []
    executor = open_executor(build, threads=1)
    prompts = [cases.prompt(length, 7) for length in lengths]
    more = [cases.prompt(steps, 1000 + slot) for slot in range(len(lengths))]
    wants = []
    for slot, (prompt, following) in enumerate(zip(prompts, more, strict=True)):
        want = answer(case.checkpoint, prompt, following, build.manifest.geometry)
        errors.append(np.abs(executor.prefill_prompt(slot, prompt).logits - want.logits[0]).max())
        found = _by_cache(executor.topk_positions() or (), build.manifest.geometry)
        for kept, expected in zip(found, want.kept, strict=False):
            assert np.array_equal(kept, expected), f"{case} L={len(prompt)}"
        wants.append(want)
    length = np.array(lengths)
    for step in range(steps):
        ids = np.array([following[step] for following in more])
        predictions = executor.decode(ids, length + step, length)
        for slot, want in enumerate(wants):
            got, expected = predictions[slot].logits, want.logits[1 + step]
            errors.append(np.abs(got - expected).max())
            assert got.argmax() == expected.argmax()
    executor.close()
    assert max(errors) <= LOGITS, case
    return float(max(errors))
