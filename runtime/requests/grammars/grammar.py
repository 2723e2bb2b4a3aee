"""A compiled grammar, and a request's place in it. Knows no logits and no end tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarError(UserError):
    """An answer can't go on by its grammar: it came to take too much memory or time."""

    def __init__(self, why: str) -> None:
        what = f"structured_outputs can't be followed: {' '.join(why.split())}"
        super().__init__(what, "simplify it")


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """matcher: at the beginning. vocab_size: of the logits. end: a token that is never sampled."""

    matcher: "LLMatcher"
    vocab_size: int
    end: int

    def begin(self) -> "Place":
        """The place of a new answer."""
        return Place(self)


class Place:
    """What may follow the tokens so far."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar, self._matcher = grammar, grammar.matcher.deep_copy()
        self.allowed = self._mask()
        """[V]: whether each token may be the next one, leaving out those that end an answer."""

    @property
    def may_end(self) -> bool:
        """Whether the text so far is all that the grammar asks for."""
        return self._matcher.is_accepting()

    @property
    def must_end(self) -> bool:
        """Whether nothing may follow it."""
        return not self.allowed.any()

    def take(self, token: int) -> None:
        """Go on by an allowed token. Raises GrammarError."""
        self._matcher.consume_token(token)
        self.allowed = self._mask()

    def _mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())
        # The tokenizer may know more tokens than there are logits, or fewer.
        mask = np.unpackbits(bits, count=self._grammar.vocab_size, bitorder="little")
        mask[self._grammar.end : self._grammar.end + 1] = 0
        return mask.view(np.bool_)
