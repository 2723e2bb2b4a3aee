"""Makes tokens less likely that came before: repetition, frequency and presence, as in vLLM."""

from collections.abc import Iterable

import numpy as np

from snapexport.runtime.arrays import Floats, Integers
from snapexport.runtime.engine.predictions import Logits
from snapexport.runtime.requests.processors.processor import Answer, LogitProcessor
from snapexport.runtime.requests.request import SamplingParams


class Penalties(LogitProcessor):
    """Repetition counts the prompt and the answer; frequency and presence the answer alone."""

    def __init__(self, params: SamplingParams, prompt: Iterable[int]) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._answer, self._text = TokenCounts(), TokenCounts()
        if self._repetition != 1:
            for token in dict.fromkeys(prompt):
                self._text.add(token)

    @classmethod
    def of(cls, answer: Answer) -> "Penalties | None":
        """None where no penalty has an effect."""
        params, request = answer.params, answer.request
        repeats = params.repetition_penalty != 1
        if not (repeats or params.presence_penalty or params.frequency_penalty):
            return None
        return cls(params, (*request.prompt_token_ids, *request.continuation))

    def apply(self, logits: Logits) -> None:
        if self._repetition != 1:
            seen = self._text.tokens
            values = logits[seen]
            factor = self._repetition
            logits[seen] = np.where(values > 0, values / factor, values * factor)
        if self._frequency or self._presence:
            counts = self._answer.counts
            logits[self._answer.tokens] -= self._frequency * counts + self._presence

    def took(self, token: int) -> None:
        self._answer.add(token)
        if self._repetition != 1:
            self._text.add(token)


class TokenCounts:
    """The different tokens of a growing text, and how often each came."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._tokens = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    @property
    def tokens(self) -> Integers:
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> Floats:
        """float32, one for each of `tokens`."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        """Count the text's next token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[place] = token
        self._counts[place] += 1
