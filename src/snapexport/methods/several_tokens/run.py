"""Keeps the position that each cache slot holds, and drafts, where steps take several tokens.

Prompt lookup (Saxena, 2023) drafts the next tokens of a text from the text itself: if its last
tokens came before, what followed them then is the draft. It needs no model, and finds tokens whose
keys and values were evicted from the cache long ago.

A step writes its tokens to cache slots in a row. Those that were not accepted are forgotten: the
next step writes over them. A step that would reach beyond the ring's end begins at its start.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.errors import UserError
from snapexport.methods.several_tokens.spec import place_inputs
from snapexport.runtime.engine.backend import Integers
from snapexport.runtime.engine.bound_graph import HostArrays
from snapexport.runtime.engine.followers import SlotFollower
from snapexport.runtime.engine.method import Loaded, MethodRun
from snapexport.runtime.requests.generation import Generation
from snapexport.runtime.requests.speculation import Acceptance, Draft, Drafter, StepInputs

_LONGEST, _SHORTEST = 4, 2
"""Tokens that have to repeat. A single one repeats by chance."""


_FIRST_GUESS = 0.3
"""Share of right drafts before any was seen."""


class PromptLookup(Drafter):
    """The texts of all running requests."""

    def __init__(self) -> None:
        self._texts: dict[int, RepeatingText] = {}
        self._acceptance: dict[int, Acceptance] = {}

    def propose(self, lives: Sequence[Generation], step: StepInputs) -> Mapping[int, Draft]:
        """A draft for every request; an empty one if nothing repeats."""
        return {live.request_id: self._draft(live) for live in lives}

    def _draft(self, live: Generation) -> Draft:
        if live.request_id not in self._texts:
            self._texts[live.request_id] = RepeatingText(live.prompt_token_ids)
            self._acceptance[live.request_id] = Acceptance(_FIRST_GUESS)
        text = self._texts[live.request_id]
        for token in live.tokens_from(text.count):
            text.append(token)
        tokens = text.draft(live.room)
        return Draft(tokens, self._acceptance[live.request_id].expected(len(tokens)), self)

    def learn(self, request_id: int, right: int, wrong: int) -> None:
        if acceptance := self._acceptance.get(request_id):
            acceptance.saw(right, wrong)

    def forget(self, request_id: int) -> None:
        self._texts.pop(request_id, None)
        self._acceptance.pop(request_id, None)


class RepeatingText:
    """One request's tokens: its prompt, and what was generated."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.count = len(token_ids)
        """Tokens so far."""
        self._tokens = np.zeros(2 * self.count + 64, np.int64)
        self._tokens[: self.count] = token_ids

    def append(self, token: int) -> None:
        """Take the next token of the text."""
        if self.count == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self.count] = token
        self.count += 1

    def draft(self, count: int) -> list[int]:
        """Return up to `count` tokens; none if nothing like the text's end came before.

        The longest repeated end wins, and of several places the latest. A draft that runs into the
        text's end goes on with itself: a text that repeats itself may do so once more.
        """
        start = self._after_repeated_end()
        if start is None:
            return []
        draft: list[int] = []
        for index in range(start, start + count):
            own = index - self.count
            draft.append(int(self._tokens[index]) if own < 0 else draft[own])
        return draft

    def _after_repeated_end(self) -> int | None:
        """The index after the latest earlier occurrence of the text's end."""
        tokens, end = self._tokens[: self.count], self.count
        if end <= _SHORTEST:
            return None
        last = tokens[end - _SHORTEST :]
        # Where the shortest end repeats: the index after it.
        alike = (tokens[: end - _SHORTEST] == last[0]) & (tokens[1 : end - 1] == last[1])
        indices = np.flatnonzero(alike) + _SHORTEST
        for length in range(_LONGEST, _SHORTEST, -1):
            longer = self._repeating(indices[indices >= length], length)
            if len(longer):
                return int(longer[-1])
        return int(indices[-1]) if len(indices) else None

    def _repeating(self, indices: Integers, length: int) -> Integers:
        """Those indices before which `length` tokens equal the text's last ones."""
        for back in range(_SHORTEST + 1, length + 1):
            indices = indices[self._tokens[indices - back] == self._tokens[self.count - back]]
        return indices


class Continuation(Drafter):
    """For requests whose next tokens are given: no other drafter is asked for these."""

    def propose(self, lives: Sequence[Generation], step: StepInputs) -> Mapping[int, Draft]:
        found = {live.request_id: live.given(live.room) for live in lives if live.is_forced}
        return {request: Draft(tokens, len(tokens), None) for request, tokens in found.items()}


EMPTY = -1
_KEPT = 0
"""Kept cache slots only need a position that the mask lets through: 0 is such a position."""


class SlotPositions(SlotFollower):
    """The cache slots of all batch slots, for each shape of layers."""

    def __init__(self, geometry: CacheGeometry, batch: int) -> None:
        shapes = dict.fromkeys(geometry.layers)
        self._shapes = [_ShapePositions(shape, batch) for shape in shapes]
        self._tokens = geometry.steps.tokens
        self._was_fed = np.zeros(batch, bool)

    @classmethod
    def of(cls, loaded: Loaded) -> "SlotPositions | None":
        """None for a build whose steps take one token, and for a full cache."""
        geometry = loaded.manifest.geometry
        if not geometry.steps.several or loaded.graphs.full_cache:
            return None
        return cls(geometry, loaded.limits.batch)

    def fill(self, slot: int, prompt_length: int) -> None:
        self._was_fed[slot] = False
        for shape in self._shapes:
            shape.fill(slot, prompt_length)

    def move(self, source: int, target: int) -> None:
        self._was_fed[target] = self._was_fed[source]
        for shape in self._shapes:
            shape.move(source, target)

    def feed(self, arrays: HostArrays) -> None:
        """Choose cache slots for a step of every batch slot that the graph runs, idle ones too."""
        position_ids = arrays[names.POSITION_IDS]
        count, tokens = position_ids.shape
        self._was_fed[:count] = True
        for index, shape in enumerate(self._shapes):
            for slot in range(count):
                shape.write(slot, int(position_ids[slot, 0]), tokens)
            write_slot, slot_positions = place_inputs(index)
            arrays[write_slot][:] = shape.first[:count]
            arrays[slot_positions][:] = shape.held[:count]

    def accept(self, slot: int, count: int) -> None:
        for shape in self._shapes:
            shape.accept(slot, count, self._tokens)

    def discard(self, slot: int) -> None:
        for shape in self._shapes:
            shape.accept(slot, 0, 1)

    def require_in_caches(self, slot: int, decoded: int) -> None:
        """They do right after prefill, when the ring's order follows from the prompt's length."""
        if self._was_fed[slot]:
            raise UserError(
                f"batch slot {slot} has decoded {decoded} tokens: a build with --tokens-per-step "
                "hands a prompt over before that",
                "hand it over right after prefill",
            )


class _ShapePositions:
    """held: int64 [B,S]. first: int64 [B], the cache slot of the last step's first token."""

    def __init__(self, shape: LayerGeometry, batch: int) -> None:
        self._shape = shape
        self._ring_ends = np.zeros(batch, np.int64)
        self.held = np.full((batch, shape.cache_slots), EMPTY, np.int64)
        self.first = np.zeros(batch, np.int64)
        self._next = np.zeros(batch, np.int64)

    def fill(self, slot: int, prompt_length: int) -> None:
        shape = self._shape
        self.held[slot] = shape.source_positions(prompt_length, [_KEPT] * shape.K)
        self._ring_ends[slot] = shape.ring(prompt_length).stop
        self._next[slot] = shape.cache_slot(prompt_length, prompt_length)

    def move(self, source: int, target: int) -> None:
        self._ring_ends[target] = self._ring_ends[source]
        self.held[target] = self.held[source]
        self._next[target] = self._next[source]

    def write(self, slot: int, position: int, tokens: int) -> None:
        first = int(self._next[slot])
        if first + tokens > self._ring_ends[slot]:
            first = self._shape.L_sink
        self.first[slot] = first
        self.held[slot, first : first + tokens] = np.arange(position, position + tokens)
        self._next[slot] = first + tokens

    def accept(self, slot: int, count: int, tokens: int) -> None:
        first = int(self.first[slot])
        self.held[slot, first + count : first + tokens] = EMPTY
        self._next[slot] = first + count


class SeveralTokensRun(MethodRun):
    """Steps check what follows in the output so far, or what a request is given."""

    followers = (SlotPositions.of,)
    drafters = (lambda drafts: Continuation(), lambda drafts: PromptLookup())


RUN = SeveralTokensRun()
