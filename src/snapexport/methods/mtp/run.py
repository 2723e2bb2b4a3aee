"""Drafts tokens by a build's graphs of multi-token prediction (MTP), and keeps their ring right.

A row of the ring follows from a token and the model's hidden states of the position before. Prefill
and decode steps leave their hidden states here. A draft first writes the rows that are missing, so
that rejected tokens and steps without a draft need no repair. Knows no request.

The layer attends by distance, so its positions count from the first hidden states that are known:
those of the prompt's first token, or later ones where a row came from elsewhere. The ring is empty
then, and drafts are worse until it fills.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from snapexport.contract import names
from snapexport.contract.manifest import Manifest, TensorSpec
from snapexport.contract.pieces import Piece
from snapexport.methods.mtp.spec import GRAPH, PREFILL_GRAPH
from snapexport.runtime.arrays import Integers
from snapexport.runtime.engine.backend import Buffer, Buffers, GraphBackend
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate, write_tokens
from snapexport.runtime.engine.fill_slot import new_row
from snapexport.runtime.engine.followers import NO_DRAFT, Drafts, SlotFollower, Step
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.method import MethodRun
from snapexport.runtime.engine.predictions import Predictions
from snapexport.runtime.requests.drafters.drafter import Acceptance, Draft, Drafter, StepInputs
from snapexport.runtime.requests.generation import Generation

_BY_STEPS = 4
"""Missing rows of a batch slot that steps write, each of them for all batch slots. More are written
by mtp-prefill, which takes one batch slot's and costs a whole chunk."""
_WAITING = 32
"""Hidden states of a batch slot that wait for their rows, at most."""


@dataclass
class _Slot:
    """A batch slot's ring. base: the position of the first hidden states. The ring has the rows of
    the tokens at positions (base, done]. fed: the tokens at positions `done` and later, whose
    hidden states wait: each makes a row with the token that follows it.
    """

    base: int = 0
    done: int = 0
    fed: list[int] = field(default_factory=list)

    @property
    def next_position(self) -> int:
        """The position of the next token that decode takes."""
        return self.done + len(self.fed)


@dataclass(frozen=True)
class _Filled:
    """The rest in mtp-prefill's buffers: a whole prompt's ring, and its last hidden states."""

    prompt: tuple[int, ...]
    base: int
    row: int


class MtpDrafts(SlotFollower):
    """The graphs `mtp` and `mtp-prefill`, and the rings of all batch slots."""

    @classmethod
    def of(cls, loaded: Loaded) -> "MtpDrafts | None":
        """None where the graphs are not loaded."""
        if GRAPH not in loaded.graphs.names:
            return None
        positions = loaded.limits.positions
        return cls(loaded.manifest, positions, loaded.backend, loaded.weights)

    def __init__(
        self, manifest: Manifest, positions: int, backend: GraphBackend, weights: Buffers
    ) -> None:
        """positions: tokens are fed at positions below it."""
        self._memory, self._last = backend.memory, positions - 1
        entry = manifest.graphs[GRAPH]
        buffers = allocate(self._memory, entry, weights)
        self._step = BoundGraph(backend, GRAPH, entry, buffers)
        pasts = [one for name, one in buffers.items() if names.is_past(name)]
        batch, self._several = manifest.batch, manifest.geometry.steps.tokens
        self._rings = [[past.rows(slot, slot + 1) for past in pasts] for slot in range(batch)]
        self._slots = [_Slot() for _ in range(batch)]
        entry = manifest.graphs[PREFILL_GRAPH]
        apart = new_row(entry, self._memory)  # it reads the ring while it writes
        self._chunk = BoundGraph(
            backend, PREFILL_GRAPH, entry, allocate(self._memory, entry, weights | apart)
        )
        self._states = self._chunk.buffers[names.HIDDEN_STATES]
        _, self._chunk_tokens, self._width = self._states.shape
        self._most_waiting = max(_WAITING, self._several + 1)
        self._waiting = self._memory.allocate(
            TensorSpec(
                name=names.HIDDEN_STATES,
                dtype=self._states.dtype,
                shape=[batch, self._most_waiting, self._width],
            )
        )
        self._filled: _Filled | None = None

    def begin(self, slot: int, position: int) -> None:
        """Empty the ring: the next hidden states are those of `position`.

        Everything is zeroed, since a former request may have left NaN.
        """
        self._slots[slot] = _Slot(position, position)
        for ring in self._rings[slot]:
            self._memory.zero(ring)
        self._memory.zero(self._waiting.rows(slot, slot + 1))
        self._memory.zero(self._step.buffers[names.HIDDEN_STATES].rows(slot, slot + 1))

    def took(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, hidden_states: Buffer | None
    ) -> None:
        """Write the rows of a piece's tokens.

        hidden_states: [1,C,E]; None if nothing was run, since the prompt cache has the piece. The
        ring begins after such a piece, unless the whole prompt is that of the call before.
        """
        if piece.only_votes:
            return
        start, end, states = piece.start, piece.end, hidden_states
        one = self._slots[slot]
        if start == 0 or not one.base <= start <= one.done:
            self.begin(slot, start)
            one = self._slots[slot]
        is_last, ring = end == len(prompt), self._rings[slot][0].shape[2]
        if states is None:
            if is_last:
                self._take_again(slot, prompt)
            return
        if end < len(prompt) - ring:  # later chunks write over all of its rows
            one.done = end
            return
        one.done = start
        self._memory.copy(self._states, states)
        self._write_rows(slot, prompt[start + 1 : end + 1])
        if is_last:
            self._filled = _Filled(prompt, one.base, end - 1 - start)
            self._keep_last(slot, prompt[-1], self._filled.row)

    def _take_again(self, slot: int, prompt: Sequence[int]) -> None:
        """Fill the ring of a prompt that was not run, since the one before was the same."""
        filled = self._filled
        if not filled or filled.prompt != prompt:
            self.begin(slot, len(prompt))
            return
        self._slots[slot] = _Slot(filled.base, len(prompt) - 1)
        self._keep_rows(slot)
        self._keep_last(slot, prompt[-1], filled.row)

    def _keep_last(self, slot: int, token: int, row: int) -> None:
        """Keep a prompt's last hidden states, which are in mtp-prefill's buffer at `row`."""
        self._slots[slot].fed = [token]
        whole = self._states.reshaped(self._chunk_tokens, self._width)
        self._memory.copy(self._waiting_at(slot, 0), whole.rows(row, row + 1))

    def decoded(self, step: Step) -> None:
        """Keep a step's hidden states."""
        states = step.hidden_states
        assert states, "a build with --mtp has hidden states"
        tokens = step.input_ids.reshape(len(step.input_ids), -1)
        for slot in np.flatnonzero(step.prompt_length).tolist():
            position = int(step.position_ids[slot])
            if self._slots[slot].next_position != position:
                self.begin(slot, position)
            if len(self._slots[slot].fed) + self._several > self._most_waiting:
                self._catch_up(slot)
            one, (_, count, width) = self._slots[slot], states.shape
            first = len(one.fed)
            self._memory.copy(
                self._waiting_of(slot).rows(first, first + count),
                states.rows(slot, slot + 1).reshaped(count, width),
            )
            one.fed += tokens[slot].tolist()

    def accept(self, slot: int, count: int) -> None:
        fed = self._slots[slot].fed
        del fed[len(fed) - self._several + count :]

    def draft(
        self, input_ids: Integers, position_ids: Integers, prompt_length: Integers
    ) -> Integers:
        """Return the likeliest token after each of the first n batch slots' next ones, int64 [n].

        Arguments: those of the decode step that follows, [n] each. `NO_DRAFT` for idle batch slots,
        and where no hidden states are known yet.
        """
        drafted = np.full(len(input_ids), NO_DRAFT)
        slots = [
            slot
            for slot in np.flatnonzero(prompt_length).tolist()
            if self._slots[slot].fed and self._slots[slot].next_position == position_ids[slot]
        ]
        for slot in slots:
            if len(self._slots[slot].fed) > _BY_STEPS:
                self._catch_up(slot)
            self._slots[slot].fed.append(int(input_ids[slot]))
        left = max((len(self._slots[slot].fed) - 1 for slot in slots), default=0)
        while left:
            self._run_step(slots, left)
            left -= 1
        for slot in slots:
            one = self._slots[slot]
            one.done, one.fed = int(position_ids[slot]), []
            drafted[slot] = Predictions(self._step, np.arange(len(input_ids)))[slot].likeliest
        return drafted

    def _run_step(self, slots: Sequence[int], left: int) -> None:
        """Write one row of each batch slot. left: steps until each one's last row is written.

        A batch slot that has fewer rows to write repeats its first one, to the same values. Others
        write where their next row will be, which that row will overwrite.
        """
        arrays, states = self._step.arrays, self._step.buffers[names.HIDDEN_STATES]
        if names.TEMPERATURE in arrays:
            arrays[names.TEMPERATURE][:] = 1
        arrays[names.INPUT_IDS][:] = 0
        for slot, one in enumerate(self._slots):
            row = 0
            if slot in slots:
                row = max(0, len(one.fed) - 1 - left)
                arrays[names.INPUT_IDS][slot] = one.fed[row + 1]
                self._memory.copy(
                    states.rows(slot, slot + 1).reshaped(1, self._width),
                    self._waiting_at(slot, row),
                )
            position = one.done + 1 + row - one.base
            arrays[names.POSITION_IDS][slot] = min(position, self._last)
        self._step.run()

    def _catch_up(self, slot: int) -> None:
        """Write the rows of all tokens that a token follows, by mtp-prefill."""
        one = self._slots[slot]
        tokens, last = one.fed[1:], len(one.fed) - 1
        for first in range(0, last, self._chunk_tokens):
            some = tokens[first : first + self._chunk_tokens]
            self._memory.copy(
                self._states.reshaped(len(some), self._width),
                self._waiting_of(slot).rows(first, first + len(some)),
            )
            self._write_rows(slot, some)
        one.fed = one.fed[-1:]
        self._memory.copy(self._waiting_at(slot, 0), self._waiting_at(slot, last))

    def _write_rows(self, slot: int, tokens: Sequence[int]) -> None:
        """Run mtp-prefill: the tokens after position `done`, beside the states in its buffer."""
        one, chunk, self._filled = self._slots[slot], self._chunk, None
        for ring in self._rings[slot]:
            self._memory.copy(chunk.buffers[ring.name], ring)
        write_tokens(chunk.arrays, tokens, 1.0)
        chunk.arrays[names.PAST_LENGTH][:] = one.done - one.base
        chunk.arrays[names.CHUNK_LENGTH][:] = len(tokens)
        chunk.run()
        self._keep_rows(slot)
        one.done += len(tokens)

    def _keep_rows(self, slot: int) -> None:
        """Copy what mtp-prefill wrote into the batch slot's ring."""
        for ring in self._rings[slot]:
            self._memory.copy(ring, self._chunk.buffers[names.present_of(ring.name)])

    def clear(self, slot: int) -> None:
        self.begin(slot, 0)

    def move(self, source: int, target: int) -> None:
        for over, ring in zip(self._rings[target], self._rings[source], strict=True):
            self._memory.copy(over, ring)
        self._memory.copy(
            self._waiting.rows(target, target + 1), self._waiting.rows(source, source + 1)
        )
        self._slots[target], self._slots[source] = self._slots[source], _Slot()

    def _waiting_of(self, slot: int) -> Buffer:
        """The hidden states of a batch slot that wait, [P,E]."""
        return self._waiting.rows(slot, slot + 1).reshaped(self._most_waiting, self._width)

    def _waiting_at(self, slot: int, index: int) -> Buffer:
        return self._waiting_of(slot).rows(index, index + 1)


_FIRST_GUESS = 0.8
"""Share of right drafts before any was seen: DeepSeek-V3's report has 0.85 to 0.9."""
_REST = 0.002
"""How fast that guess comes back while nothing is drafted: a few drafts in hundreds of steps."""


class MtpDrafter(Drafter):
    """Asks the executor, for all batch slots at once."""

    takes_time = True

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts
        self._acceptance = defaultdict[int, Acceptance](lambda: Acceptance(_FIRST_GUESS))

    def expected(self, request_id: int) -> float:
        return self._acceptance[request_id].rate

    def propose(self, lives: Sequence[Generation], step: StepInputs) -> Mapping[int, Draft]:
        inputs = step.input_ids, step.position_ids, step.prompt_length
        drafted = self._drafts.draft(*inputs).tolist()
        return {
            request_id: Draft([drafted[slot]], self.expected(request_id), self)
            for request_id, slot in step.slots.items()
            if drafted[slot] != NO_DRAFT
        }

    def learn(self, request_id: int, right: int, wrong: int) -> None:
        if request_id in self._acceptance:
            self._acceptance[request_id].saw(right, wrong)

    def rest(self, request_id: int) -> None:
        acceptance = self._acceptance[request_id]
        acceptance.rate += _REST * (_FIRST_GUESS - acceptance.rate)

    def forget(self, request_id: int) -> None:
        self._acceptance.pop(request_id, None)


class MtpRun(MethodRun):
    """The executor keeps the rings, and requests draft by them."""

    followers = (MtpDrafts.of,)
    drafters = (lambda executor: MtpDrafter(executor.drafts) if executor.drafts else None,)


RUN = MtpRun()
