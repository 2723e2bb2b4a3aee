"""Bounds the digits that follow one another in a JSON number, which no schema bounds.

A model may go on with them to the end, as with zeros after a decimal point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST = 24
"""Digits in a row. Integers of 64 bits have 20 at most, and a double 22 as JavaScript writes it."""

_DIGITS = b"0123456789"

Mask = NDArray[np.uint8]
"""A bit for each token."""


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """What a vocabulary's tokens have of digits.

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
        """Of a vocabulary, by its tokens' bytes."""
        first = np.array([len(text) - len(text.lstrip(_DIGITS)) for text in texts], np.int64)
        last = np.array([len(text) - len(text.rstrip(_DIGITS)) for text in texts], np.int64)
        lengths = np.array([len(text) for text in texts], np.int64)
        singles = np.flatnonzero((first == 1) & (lengths == 1)).tolist()
        quotes = _packed(np.array([text.startswith(b'"') for text in texts]))
        return cls(first, last, first < lengths, int(first.max(initial=0)), singles, quotes)


class Run:
    """The digits at the end of an answer so far.

    exits: tells of a token whether the answer could go on after it with other than digits, or end.
    """

    def __init__(self, digits: Digits, exits: Callable[[int], bool]) -> None:
        self._digits, self._exits = digits, exits
        self._length = 0

    def take(self, token: int) -> None:
        """Go on by a token."""
        before = 0 if self._digits.other[token] else self._length
        self._length = before + int(self._digits.last[token])

    def bounded(self, mask: Mask, may_end: bool) -> Mask:
        """The mask without further digits, where there were enough and something else may follow.

        If only digits may, as after 0.000 above an exclusive minimum of 0, those that lead out.
        Within a text, which a quotation mark may end, digits are not counted.
        """
        digits, room = self._digits, max(MOST - self._length, 0)
        if room >= digits.widest or _both(mask, digits.quotes).any():
            return mask
        left = _both(mask, _packed(digits.first <= room))
        if may_end or left.any():
            return left
        out = np.zeros_like(digits.other)
        out[[one for one in digits.singles if _has(mask, one) and self._exits(one)]] = True
        chosen = _both(mask, _packed(out))
        return chosen if chosen.any() else mask


def has_other(digits: Digits, mask: Mask) -> bool:
    """Whether the mask has a token that does not begin with a digit."""
    return bool(_both(mask, _packed(digits.first == 0)).any())


def _packed(which: NDArray[np.bool_]) -> Mask:
    return np.packbits(which, bitorder="little")


def _both(mask: Mask, other: Mask) -> Mask:
    """What both have, in the size of the first."""
    common = min(len(mask), len(other))
    found = np.zeros_like(mask)
    found[:common] = mask[:common] & other[:common]
    return found


def _has(mask: Mask, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)
