"""Compiles the grammars of an LLM's requests, and follows one token by token.

Any thread may compile. The latest are kept, and a new one is tried in a process of its own first.
Knows no logits and no end tokens.

Bounds the digits that follow one another in a JSON number, which no schema bounds: a model may go
on with them to the end, as with zeros after a decimal point.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.errors import UserError, needs_extra
from snapexport.runtime.confined import Confined, Pool
from snapexport.runtime.requests.structured_outputs import StructuredOutputs

MOST = 24
"""Digits in a row. Integers of 64 bits have 20 at most, and a double 22 as JavaScript writes it."""

_DIGITS = b"0123456789"

Mask = NDArray[np.uint8]
"""A bit for each token."""


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """The digits of a vocabulary's tokens.

    first, last: [V], how many at a token's beginning and end; other: [V], whether it has more than
    digits. widest: the most of `first`. singles: the tokens of one digit and nothing else.
    quotes: of tokens that begin with a quotation mark.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    other: NDArray[np.bool_]
    widest: int
    singles: Sequence[int]
    quotes: Mask

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "Digits":
        """Count those of a vocabulary, by its tokens' bytes."""
        first = np.array([len(text) - len(text.lstrip(_DIGITS)) for text in texts], np.int64)
        last = np.array([len(text) - len(text.rstrip(_DIGITS)) for text in texts], np.int64)
        lengths = np.array([len(text) for text in texts], np.int64)
        singles = np.flatnonzero((first == 1) & (lengths == 1)).tolist()
        quotes = _pack(np.array([text.startswith(b'"') for text in texts]))
        return cls(first, last, first < lengths, int(first.max(initial=0)), singles, quotes)


class Run:
    """The digits at the end of an answer so far.

    exits: says of a token whether the answer could go on after it with other than digits, or end.
    """

    def __init__(self, digits: Digits, exits: Callable[[int], bool]) -> None:
        self._digits, self._exits = digits, exits
        self._length = 0

    def take(self, token: int) -> None:
        """Go on by a token."""
        before = 0 if self._digits.other[token] else self._length
        self._length = before + int(self._digits.last[token])

    def bound_mask(self, mask: Mask, may_end: bool) -> Mask:
        """The mask without further digits, where there were enough and something else may follow.

        If only digits may, as after 0.000 above an exclusive minimum of 0, those that lead out.
        Within a text, which a quotation mark may end, digits are not counted.
        """
        digits, room = self._digits, max(MOST - self._length, 0)
        if room >= digits.widest or _both(mask, digits.quotes).any():
            return mask
        left = _both(mask, _pack(digits.first <= room))
        if may_end or left.any():
            return left
        out = np.zeros_like(digits.other)
        out[[one for one in digits.singles if _has(mask, one) and self._exits(one)]] = True
        chosen = _both(mask, _pack(out))
        return chosen if chosen.any() else mask


def has_other(digits: Digits, mask: Mask) -> bool:
    """Whether the mask has a token that does not begin with a digit."""
    return bool(_both(mask, _pack(digits.first == 0)).any())


def _pack(which: NDArray[np.bool_]) -> Mask:
    return np.packbits(which, bitorder="little")


def _both(mask: Mask, other: Mask) -> Mask:
    """The bits that both have, in the size of the first."""
    common = min(len(mask), len(other))
    found = np.zeros_like(mask)
    found[:common] = mask[:common] & other[:common]
    return found


def _has(mask: Mask, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


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
    """The place of an answer: what may follow its tokens so far, but for those that end it."""

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

    def bias(self) -> NDArray[np.float32]:
        """float32 [V]: 0 for tokens that may be next, -inf for others."""
        # Adding takes a fifth of the time of a masked copy.
        return _BIAS[self._mask].reshape(-1)[: self._vocab_size]

    def take(self, token: int) -> None:
        """Go on by an allowed token. Raises GrammarError."""
        self._matcher.consume_token(token)
        self._mask = self._next(self._matcher)
        if self._run:
            self._run.take(token)
            self._mask = self._run.bound_mask(self._mask, self.may_end)

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


if TYPE_CHECKING:
    from llguidance import LLTokenizer

MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class _Opened:
    tokenizer: "LLTokenizer"
    end: int
    digits: Digits
    trials: Pool


class Grammars:
    """Compiles for one tokenizer. Nothing is loaded before `open`, or the first `compile`."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._opened: _Opened | None = None
        self._kept: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._lock = Lock()

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        """The grammar of a form. Raises UserError."""
        opened = self.open()
        with self._lock:
            if found := self._kept.get(outputs):
                self._kept.move_to_end(outputs)
                return found
        grammar = self._compile_new(outputs, opened)
        with self._lock:
            self._kept[outputs] = grammar
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _compile_new(self, outputs: StructuredOutputs, opened: _Opened) -> Grammar:
        from snapexport.runtime.requests.grammars import library

        reply = opened.trials.ask([*outputs.source, outputs.lenient, outputs.within])
        text = reply["grammar"]
        if outputs.within:
            text = library.embed(outputs.within, text)
        matcher = library.matcher_of(opened.tokenizer, text)
        digits = opened.digits if outputs.has_json else None
        grammar = Grammar(matcher, self._vocab_size, opened.end, digits)
        if grammar.begin().must_end:
            raise library.refusal("no text has this form")
        return grammar

    def open(self) -> _Opened:
        """Read the tokenizer. Raises UserError.

        It takes seconds for a large one, in which no other thread runs.
        """
        with self._lock:
            self._opened = self._opened or self._open()
            return self._opened

    def _open(self) -> _Opened:
        if self._tokenizer is None:
            raise UserError(
                "structured outputs need a tokenizer, and the build has none",
                "copy tokenizer.json from the checkpoint into the build",
            )
        with needs_extra("serve"):
            from snapexport.runtime.requests.grammars import library
        vocabulary = library.Vocabulary.of(self._tokenizer)
        trial = partial(
            Confined,
            "snapexport.runtime.requests.grammars.library",
            asdict(vocabulary),
            "structured_outputs can't be compiled",
            "simplify it",
        )
        opened = vocabulary.open()
        texts = [opened.decode_bytes([token]) for token in range(opened.vocab_size)]
        return _Opened(opened, vocabulary.end, Digits.of(texts), Pool(trial))
