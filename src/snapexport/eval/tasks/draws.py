"""Draws the names and numbers of a sample: none of them twice, none part of another.

Needles are drawn before noise from the same source, so noise can't contradict a needle.
"""

from collections.abc import Callable
from random import Random
from string import ascii_uppercase
from uuid import UUID

from snapexport.vault.words import ADJECTIVES, KEYS, VALUES

VARIABLE_LETTERS = 5


def _apart(words: tuple[str, ...]) -> tuple[str, ...]:
    """The lower-case words that neither begin nor end another one, like 'pig' and 'old' do."""
    return tuple(
        word
        for word in words
        if word.islower()
        and not any(other != word and other.startswith(word) for other in words)
        and not any(other != word and other.endswith(word) for other in words)
    )


_FIRST, _SECOND, _THIRD = _apart(ADJECTIVES), VALUES, _apart(KEYS)


class Draws:
    """All that is drawn for one sample; the same for the same task and seed."""

    def __init__(self, task: str, seed: int) -> None:
        self.rng = Random(f"{task} {seed}")
        self._taken: set[str] = set()

    def key(self) -> str:
        """Three words, such as quiet-amber-heron (RULER's keys have two)."""
        return self._new(lambda: "-".join(map(self.rng.choice, (_FIRST, _SECOND, _THIRD))))

    def number(self, digits: int) -> str:
        return self._new(lambda: str(self.rng.randrange(10 ** (digits - 1), 10**digits)))

    def uuid(self) -> str:
        return self._new(lambda: str(UUID(int=self.rng.getrandbits(128), version=4)))

    def variable(self) -> str:
        """Five capital letters, as in RULER."""
        return self._new(lambda: "".join(self.rng.sample(ascii_uppercase, VARIABLE_LETTERS)))

    def _new(self, draw: Callable[[], str]) -> str:
        while (drawn := draw()) in self._taken:
            pass
        self._taken.add(drawn)
        return drawn
