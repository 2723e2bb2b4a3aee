"""Lays lines of noise around a task's needles, as many as fit into a prompt.

Knows no task: a function from Draws to a Haystack describes one. No draw comes twice or is part of
another one. Needles are drawn before noise, so that noise can't contradict a needle.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from random import Random
from string import ascii_lowercase, ascii_uppercase
from uuid import UUID

from snapexport.compare.documents import Prose
from snapexport.measure.eval.sample import Task, Text
from snapexport.vault.prompts import ADJECTIVES, KEYS, VALUES

VARIABLE_LETTERS = 5
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"

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


def sentences(rng: Random) -> Iterator[str]:
    """A few sentences over and over, as in RULER's noise; the seed says which is first."""
    first = rng.randrange(len(_PROSE))
    return (f"{_PROSE[i % len(_PROSE)]}\n" for i in count(first))


def endless(line: Callable[[], str]) -> Iterator[str]:
    """The lines of a function that draws one."""
    while True:
        yield line()


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence does: 'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _apart(words: tuple[str, ...]) -> tuple[str, ...]:
    """The lower-case words that neither begin nor end another one, as 'pig' and 'old' do."""
    return tuple(
        word
        for word in words
        if word.islower()
        and not any(other != word and other.startswith(word) for other in words)
        and not any(other != word and other.endswith(word) for other in words)
    )


_FIRST, _SECOND, _THIRD = _apart(ADJECTIVES), VALUES, _apart(KEYS)
_WORDS = tuple(dict.fromkeys((*_FIRST, *_THIRD)))


class Draws:
    """Draws the names and numbers of one sample; equal task and seed give equal draws."""

    def __init__(self, task: str, seed: int, prose: Prose = sentences) -> None:
        self.rng = Random(f"{task} {seed}")
        self._prose = prose
        self._taken: set[str] = set()

    def prose(self) -> Iterator[str]:
        """The text between the needles."""
        return self._prose(self.rng)

    def key(self) -> str:
        """Three words, such as quiet-amber-heron (RULER's keys have two)."""
        return self._new(lambda: "-".join(map(self.rng.choice, (_FIRST, _SECOND, _THIRD))))

    def number(self, digits: int) -> str:
        return self._new(lambda: str(self.rng.randrange(10 ** (digits - 1), 10**digits)))

    def phrase(self, words: int) -> str:
        """Words that make no sentence, each at most once."""
        return self._new(lambda: " ".join(self.rng.sample(_WORDS, words)))

    def words(self) -> list[str]:
        """All words of phrases, in an order of its own."""
        return self.rng.sample(_WORDS, len(_WORDS))

    def code(self) -> str:
        """Six letters, not a word."""
        return self._new(lambda: "".join(self.rng.sample(ascii_lowercase, 6)))

    def name(self) -> str:
        """A name that no person and no place has, such as Karovem."""
        return self._new(lambda: "".join(self._syllable() for _ in range(3)).capitalize() + "m")

    def _syllable(self) -> str:
        return self.rng.choice(_CONSONANTS) + self.rng.choice(_VOWELS)

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


@dataclass(frozen=True)
class Haystack:
    """The lines of a task's prompt. Each ends with its newline.

    needles: lines in the order of the text; a depth is the first one's place.
    noise: endless lines around them. closing: the end of the context. opening: what the reference
    has before the answers.
    """

    intro: str
    needles: tuple[str, ...]
    noise: Iterator[str]
    question: str
    answers: tuple[str, ...]
    closing: str = ""
    opening: str = " "

    @property
    def reference(self) -> str:
        """The text of a perfect model."""
        return self.opening + join_words(self.answers)


class Layout:
    """The texts of a haystack, by their number of noise lines."""

    def __init__(self, haystack: Haystack, seed: str, depth: float | None) -> None:
        self._haystack, self._seed, self._depth = haystack, seed, depth
        self._noise: list[str] = []
        self._starts = [0]

    def text(self, lines: int) -> Text:
        """Noise with the needles between its lines."""
        self._draw(lines)
        hay, parts, done = self._haystack, [self._haystack.intro], 0
        for cut, needle in zip(self._cuts(lines), hay.needles, strict=True):
            parts += [*self._noise[done:cut], needle]
            done = cut
        context = "".join((*parts, *self._noise[done:lines], hay.closing))
        return Text(context, hay.needles[0], hay.question, hay.answers, hay.reference)

    def _draw(self, lines: int) -> None:
        for line in islice(self._haystack.noise, max(0, lines - len(self._noise))):
            self._noise.append(line)
            self._starts.append(self._starts[-1] + len(line))

    def _cuts(self, lines: int) -> list[int]:
        """The number of noise lines before each needle: the others follow the first."""
        rng = Random(self._seed)
        needles = len(self._haystack.needles)
        if self._depth is None:
            return sorted(rng.randint(0, lines) for _ in range(needles))
        first = self._line_at(self._depth, lines)
        return [first, *sorted(rng.randint(first, lines) for _ in range(needles - 1))]

    def _line_at(self, depth: float, lines: int) -> int:
        """The line of noise that begins nearest to a share of the context's characters."""
        hay = self._haystack
        others = sum(map(len, (hay.intro, *hay.needles, hay.closing)))
        place = depth * (others + self._starts[lines]) - len(hay.intro)
        after = min(lines, bisect_left(self._starts, place, 0, lines + 1))
        return min((max(0, after - 1), after), key=lambda line: abs(self._starts[line] - place))


@dataclass(frozen=True)
class HaystackTask(Task):
    """A task that a function describes: it draws the needles first and the noise after them.

    prose: what the function's `Draws.prose` gives.
    """

    name: str
    haystack: Callable[[Draws], Haystack]
    prose: Prose = sentences

    def texts(self, seed: int, depth: float | None) -> Callable[[int], Text]:
        """The text of a seed by its number of noise lines."""
        return Layout(self._draw_haystack(seed), f"{self.name} {seed} places", depth).text

    def noise(self, seed: int) -> Iterator[str]:
        return self._draw_haystack(seed).noise

    def excerpt(self) -> str:
        hay = self._draw_haystack(seed=0)
        lines = chain((hay.intro,), hay.needles, islice(hay.noise, 16), (hay.closing,))
        return "".join(lines) + hay.question + hay.reference

    def _draw_haystack(self, seed: int) -> Haystack:
        return self.haystack(Draws(self.name, seed, self.prose))
