"""Keeps an answer from ending before it has `min_tokens`."""

from collections.abc import Iterable

import numpy as np

from snapexport.runtime.engine.predictions import Logits
from snapexport.runtime.requests.processors.processor import Answer, LogitProcessor

_NEVER = -1e30
"""Not -inf: where a grammar allows no other token, the answer may end."""


class LeastTokens(LogitProcessor):
    """Bans the tokens that end the answer, until it is long enough."""

    def __init__(self, least: int, end_tokens: Iterable[int]) -> None:
        self._missing = least
        self._banned = np.array(sorted(end_tokens), np.int64)

    @classmethod
    def of(cls, answer: Answer) -> "LeastTokens | None":
        """None where no token may be banned."""
        least = answer.params.min_tokens
        return cls(least, answer.end_tokens) if least and answer.end_tokens else None

    def apply(self, logits: Logits) -> None:
        if self._missing > 0:
            logits[self._banned[self._banned < len(logits)]] = _NEVER

    def took(self, token: int) -> None:
        self._missing -= 1
