"""Text that several tasks share: the prose between needles, and lists in words."""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

# No digit, no colon, no hyphen: nothing here looks like a needle.
_PROSE = (
    "The kettle hums on the stove.",
    "A gate swings in the wind.",
    "Two boats drift past the pier.",
    "The clerk sorts the morning post.",
    "Smoke rises over the roofs.",
    "Someone sweeps the yard below.",
    "The road bends around the mill.",
    "A lamp is lit in the hall.",
    "Rain runs down the window.",
)


def prose(rng: Random) -> Iterator[str]:
    """The same few sentences over and over, as in RULER's noise; the seed says which is first."""
    first = rng.randrange(len(_PROSE))
    return (f"{_PROSE[i % len(_PROSE)]}\n" for i in count(first))


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does: 'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
