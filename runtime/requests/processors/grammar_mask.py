"""Bans the tokens that a prescribed form does not allow."""

import numpy as np

from snapexport.runtime.engine.predictions import Logits
from snapexport.runtime.requests.grammars.grammar import Grammar
from snapexport.runtime.requests.processors.processor import Answer, LogitProcessor


class GrammarMask(LogitProcessor):
    """End tokens are allowed where the text is complete, and nowhere else."""

    def __init__(self, grammar: Grammar, end_tokens: frozenset[int]) -> None:
        self._place = grammar.begin()
        self._end_tokens = end_tokens
        self._ends = np.array([t for t in sorted(end_tokens) if t < grammar.vocab_size], np.int64)

    @classmethod
    def of(cls, answer: Answer) -> "GrammarMask | None":
        """None where no form is prescribed."""
        if answer.params.structured_outputs is None:
            return None
        assert answer.request.grammar, "LLM.constrained compiles it"
        return cls(answer.request.grammar, answer.end_tokens)

    def apply(self, logits: Logits) -> None:
        bias = self._place.bias()
        bias[self._ends] = 0 if self._place.may_end else -np.inf
        logits += bias

    def took(self, token: int) -> None:
        if token not in self._end_tokens:
            self._place.take(token)

    @property
    def is_complete(self) -> bool:
        return self._place.must_end
