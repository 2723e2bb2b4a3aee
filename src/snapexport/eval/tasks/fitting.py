"""Finds how much noise fits, with few calls of the tokenizer."""

from collections.abc import Callable


def most(count: Callable[[int], int], limit: int, guess: int) -> int:
    """The largest n >= 0 for which count(n) <= limit. count grows, and count(0) fits.

    Every call may encode a whole prompt, so the search interpolates: noise costs about the same
    everywhere, and a small first `guess` tells what it costs.
    """
    least = count(0)
    low, low_count = 0, least
    high = high_count = 0
    n = max(1, guess)
    while low_count < limit and high != low + 1:
        tried = count(n)
        if tried <= limit:
            low, low_count = n, tried
        else:
            high, high_count = n, tried
        if high:
            n = _between(low, low_count, high, high_count, limit)
        else:
            n = _beyond(low, low_count - least, limit - low_count)
    return low


def _between(low: int, low_count: int, high: int, high_count: int, limit: int) -> int:
    """Where a straight line between what is known meets the limit."""
    n = low + (limit - low_count) * (high - low) // (high_count - low_count)
    return min(max(n, low + 1), max(high - 1, low + 1))


def _beyond(low: int, cost: int, left: int) -> int:
    """One more than the mean cost so far promises, so as to meet a length that does not fit."""
    return low + 1 + left * low // max(1, cost)
