"""Drafts the next tokens of a text from the text itself: prompt lookup (Saxena, 2023).

If the text's last tokens came before, what followed them then is the draft. It needs no model, and
finds tokens whose keys and values were evicted from the cache long ago.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from snapexport.runtime.arrays import Integers
from snapexport.runtime.requests.drafters.drafter import Acceptance, Draft, Drafter, StepInputs
from snapexport.runtime.requests.generation import Generation

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
