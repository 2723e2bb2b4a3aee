"""A FAKE executor without a model: a token follows from its own request's history alone.

It has real batch slots, so that a slot used twice, a chunk left out or a neighbour's token shows.
From a `broken_token` on, logits are NaN for every request in the same cache, until `clear`.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.pieces import Piece, Prefill
from snapexport.methods.mtp.run import MtpRun
from snapexport.methods.several_tokens.run import SeveralTokensRun
from snapexport.runtime.engine.backend import Floats, Integers
from snapexport.runtime.engine.bound_graph import HostArrays, Logits, Prediction, Predictions
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.followers import Drafts
from snapexport.runtime.engine.graph_set import Role
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta


def make_limits(
    batch: int = 3,
    prefill_chunk: int = 4,
    longest_prompt: int = 40,
    positions: int = 1000,
    vocab_size: int = 257,
    eos_token_id: frozenset[int] = frozenset(),
    decode_batches: tuple[int, ...] = (),
    step_tokens: int = 1,
) -> Limits:
    sizes = decode_batches or (batch,)
    return Limits(
        batch=batch,
        decode_batches=sizes,
        step_tokens=step_tokens,
        longest_prompt=longest_prompt,
        positions=positions,
        vocab_size=vocab_size,
        eos_token_id=eos_token_id,
        prefill=Prefill((prefill_chunk,), longest_prompt),
    )


class FakeGraph:
    """A graph that has run: logits [n,V]."""

    def __init__(self, logits: Logits) -> None:
        self.arrays: HostArrays = {names.LOGITS: logits}
        self.predict = Prediction.of

    def run(self) -> None:
        raise AssertionError("there is no graph")

    def rows(self, output: str, start: int, stop: int) -> NDArray[np.float32]:
        return self.arrays[output][start:stop]


class FakeExecutor:
    role: Role = "both"
    rows = parking = prompt_cache = None
    captured = False
    drafters = (*SeveralTokensRun.drafters, *MtpRun.drafters)

    def __init__(
        self, limits: Limits, broken_token: int | None = None, drafts: bool = False
    ) -> None:
        self.limits = limits
        self.drafts: Drafts | None = self if drafts else None
        self.broken_token = broken_token
        self.slots: list[list[int]] = [[] for _ in range(limits.batch)]
        self.in_prefill: list[int] = []
        self.prefill_is_broken = False
        self.broken_slots: set[int] = set()
        self._last_prefilled = 0
        self.steps: list[str] = []
        self.counts: list[int] = []
        self.accepted: dict[int, int] = {}
        self._logits = np.zeros((limits.batch, limits.vocab_size), np.float32)

    def take(
        self, slot: int, prompt: Sequence[int], piece: Piece, temperature: float = 1.0
    ) -> Prediction:
        start, end = piece.start, piece.end
        self.steps.append("prefill")
        assert start <= len(self.in_prefill) or start == 0, "a chunk was left out"
        self.in_prefill[start:] = prompt[start:end]
        self._last_prefilled = slot
        self.prefill_is_broken |= self.broken_token in prompt[start:end]
        if piece.is_last:
            self.slots[slot] = list(self.in_prefill)
            self._mark(slot, self.prefill_is_broken)
        logits = self._next(self.in_prefill, self.prefill_is_broken)
        return Prediction(lambda: logits)

    prefill_prompt = Executor.prefill_prompt

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Floats | None = None,
    ) -> Predictions:
        if input_ids.ndim > 1:
            return self._decode_several(input_ids, position_ids, prompt_length, temperature)
        count = len(input_ids)
        self.steps.append("decode")
        self.counts.append(count)
        for slot, history in enumerate(self.slots[:count]):
            del history[position_ids[slot] :]  # an idle slot loses what it held
            assert len(history) == position_ids[slot], "a position was left out"
            assert 0 <= prompt_length[slot] <= self.limits.longest_prompt
            history.append(int(input_ids[slot]))
            self._mark(slot, slot in self.broken_slots or input_ids[slot] == self.broken_token)
            self._logits[slot] = self._next(history, slot in self.broken_slots)
        return Predictions(FakeGraph(self._logits), np.arange(count))

    def _decode_several(self, input_ids: Integers, *others: Any) -> Predictions:
        (count, tokens), (position_ids, *more) = input_ids.shape, others
        assert tokens == self.limits.step_tokens
        self.steps.append("several")
        logits = np.zeros((count, tokens, self.limits.vocab_size), np.float32)
        for token in range(tokens):
            self.decode(input_ids[:, token], position_ids + token, *more)
            logits[:, token] = self._logits[:count]
        self.accepted = {}
        return Predictions(FakeGraph(logits), np.arange(count))

    def draft(
        self, input_ids: Integers, position_ids: Integers, prompt_length: Integers
    ) -> Integers:
        """The likeliest token, or every third time the one after it; -1 for idle batch slots."""
        self.steps.append("draft")
        drafted = np.full(len(input_ids), -1)
        for slot in np.flatnonzero(prompt_length):
            history = self.slots[slot]
            assert len(history) == position_ids[slot], "a draft follows what was decoded"
            logits = self._next([*history, int(input_ids[slot])], broken=False)
            is_wrong = len(history) % 3 == 0
            drafted[slot] = (logits.argmax() + is_wrong) % self.limits.vocab_size
        return drafted

    def accept(self, slot: int, count: int) -> None:
        assert slot not in self.accepted, "accepted twice"
        self.accepted[slot] = count
        del self.slots[slot][len(self.slots[slot]) - self.limits.step_tokens + count :]

    def move(self, source: int, target: int) -> None:
        self.slots[target] = list(self.slots[source])
        self._mark(target, source in self.broken_slots)

    def clear(self, slot: int) -> None:
        self.slots[slot] = []
        self._mark(slot, False)
        if slot == self._last_prefilled:
            self.in_prefill = []
            self.prefill_is_broken = False

    def topk_positions(self) -> None:
        return None

    def held_shares(self, last: Piece, prompt_length: int) -> Floats:
        return np.ones(prompt_length, np.float32)

    def fill_slot(self) -> None:
        pass

    def release(self, slot: int) -> None:
        pass

    def compress(self, slot: int, prompt_length: int) -> None:
        raise AssertionError("nothing is compressed")

    def close(self) -> None:
        pass

    def _mark(self, slot: int, broken: bool) -> None:
        (self.broken_slots.add if broken else self.broken_slots.discard)(slot)

    def _next(self, history: Sequence[int], broken: bool) -> Logits:
        if broken:
            return np.full(self.limits.vocab_size, np.nan, np.float32)
        seed = zlib.crc32(np.asarray(history, np.int64).tobytes())
        return np.random.default_rng(seed).random(self.limits.vocab_size, np.float32)


def drain(llm: LLM) -> dict[int, list[OutputDelta]]:
    """All deltas that are left, by request."""
    parts: dict[int, list[OutputDelta]] = {}
    while llm.busy:
        for delta in llm.step():
            parts.setdefault(delta.request_id, []).append(delta)
    return parts
