"""Drafts the next tokens of a text from the text itself: prompt lookup (Saxena, 2023).

If the text's last tokens came before, what followed them then is the draft. It needs no model, and
finds tokens whose keys and values were evicted from the cache long ago.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LONGEST, _SHORTEST = 4, 2
"""Tokens that have to repeat. A single one repeats by chance."""


class PromptLookup:
    """One request's tokens: its prompt, and what was generated."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._count = len(token_ids)
        self._tokens = np.zeros(2 * self._count + 64, np.int64)
        self._tokens[: self._count] = token_ids

    def append(self, token: int) -> None:
        """Take the next token of the text."""
        if self._count == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self._count] = token
        self._count += 1

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
            own = index - self._count
            draft.append(int(self._tokens[index]) if own < 0 else draft[own])
        return draft

    def _after_repeated_end(self) -> int | None:
        """The place behind the latest earlier occurrence of the text's end."""
        tokens, end = self._tokens[: self._count], self._count
        if end <= _SHORTEST:
            return None
        last = tokens[end - _SHORTEST :]
        # Places where the shortest end repeats, by the index behind it.
        alike = (tokens[: end - _SHORTEST] == last[0]) & (tokens[1 : end - 1] == last[1])
        places = np.flatnonzero(alike) + _SHORTEST
        for length in range(_LONGEST, _SHORTEST, -1):
            longer = self._repeating(places[places >= length], length)
            if len(longer):
                return int(longer[-1])
        return int(places[-1]) if len(places) else None

    def _repeating(self, places: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Those places behind which `length` tokens equal the text's last ones."""
        for back in range(_SHORTEST + 1, length + 1):
            places = places[self._tokens[places - back] == self._tokens[self._count - back]]
        return places
