"""A compiled grammar, and a request's place in it. Knows no logits and no end tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.runtime.arrays import Floats
from snapexport.runtime.requests.grammars.digits import Digits, Run, has_other

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarError(UserError):
    """An answer can't go on by its grammar: it came to take too much memory or time."""

    def __init__(self, why: str) -> None:
        what = f"structured_outputs can't be followed: {' '.join(why.split())}"
        super().__init__(what, "simplify it")


_BIAS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], 1, bitorder="little"), 0.0, -np.inf
).astype(np.float32)
"""[256,8]: of each byte of a mask, what is added to the logits of its eight tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """matcher: at the beginning. vocab_size: of the logits. end: a token that is never sampled.

    digits: of the vocabulary, where numbers are bounded.
    """

    matcher: "LLMatcher"
    vocab_size: int
    end: int
    digits: Digits | None = None

    def begin(self) -> "Place":
        """The place of a new answer."""
        return Place(self)


class Place:
    """What may follow the tokens so far, leaving out the tokens that end an answer."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher, self._vocab_size = grammar.matcher.deep_copy(), grammar.vocab_size
        self._end, self._digits = grammar.end, grammar.digits
        self._run = Run(grammar.digits, self._exits) if grammar.digits else None
        self._mask = self._next(self._matcher)

    @property
    def may_end(self) -> bool:
        """Whether the text so far is all that the grammar asks for."""
        return self._matcher.is_accepting()

    @property
    def must_end(self) -> bool:
        """Whether nothing may follow it."""
        return not self._mask.any()

    def bias(self) -> Floats:
        """float32 [V]: 0 for tokens that may be next, -inf for others."""
        # Adding takes a fifth of the time of a masked copy.
        return _BIAS[self._mask].reshape(-1)[: self._vocab_size]

    def take(self, token: int) -> None:
        """Go on by an allowed token. Raises GrammarError."""
        self._matcher.consume_token(token)
        self._mask = self._next(self._matcher)
        if self._run:
            self._run.take(token)
            self._mask = self._run.bounded(self._mask, self.may_end)

    def _exits(self, token: int) -> bool:
        """Whether other than digits, or nothing, may follow this token."""
        assert self._digits, "a run has them"
        after = self._matcher.deep_copy()
        after.consume_token(token)
        return after.is_accepting() or has_other(self._digits, self._next(after))

    def _next(self, matcher: "LLMatcher") -> NDArray[np.uint8]:
        """A bit for each token."""
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8).copy()
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        mask[self._end // 8] &= ~(1 << self._end % 8) & 0xFF
        whole, rest = divmod(self._vocab_size, 8)
        if len(mask) > whole:  # tokens that have no logit
            mask[whole] &= (1 << rest) - 1
            mask[whole + 1 :] = 0
        missing = self._vocab_size - 8 * len(mask)
        return mask if missing <= 0 else np.pad(mask, (0, -(-missing // 8)))
