"""Needles in a haystack: lays lines of noise around a task's needles, as many as fit."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from random import Random

from tokenizers import Tokenizer

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.fitting import most
from snapexport.eval.tasks.sample import Sample
from snapexport.eval.tasks.task import require_depth, too_short
from snapexport.eval.tasks.writing import Text, prompt_tokens, require_spells, written

FIRST_GUESS = 64  # lines: enough to tell what one costs, and quick


@dataclass(frozen=True)
class Haystack:
    """What a task hides. Every line ends with its newline.

    needles: lines in the order of the text; the first is the one that a depth speaks of.
    noise: the lines around them, without end. closing: the end of the context.
    """

    intro: str
    needles: tuple[str, ...]
    noise: Iterator[str]
    question: str
    answers: tuple[str, ...]
    reference: str
    closing: str = ""


class Layout:
    """The contexts of a haystack, by their number of noise lines."""

    def __init__(self, haystack: Haystack, seed: str, depth: float | None) -> None:
        self._haystack, self._seed, self._depth = haystack, seed, depth
        self._noise: list[str] = []
        self._starts = [0]

    def context(self, lines: int) -> str:
        """Noise with the needles between its lines."""
        self._draw(lines)
        hay, pieces, done = self._haystack, [self._haystack.intro], 0
        for cut, needle in zip(self._cuts(lines), hay.needles, strict=True):
            pieces += [*self._noise[done:cut], needle]
            done = cut
        return "".join((*pieces, *self._noise[done:lines], hay.closing))

    def text(self, lines: int) -> Text:
        hay = self._haystack
        return Text(self.context(lines), hay.question, hay.answers, hay.reference)

    def _draw(self, lines: int) -> None:
        for line in islice(self._haystack.noise, max(0, lines - len(self._noise))):
            self._noise.append(line)
            self._starts.append(self._starts[-1] + len(line))

    def _cuts(self, lines: int) -> list[int]:
        """How many lines of noise stand before each needle: the others follow the first."""
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


class HaystackTask(ABC):
    """A task that is told by what it hides."""

    name: str

    @abstractmethod
    def haystack(self, draws: Draws) -> Haystack:
        """Draw needles first and noise after them."""

    def sample(
        self,
        tokenizer: Tokenizer,
        seed: int,
        tokens: int,
        depth: float | None = None,
        answer_tokens: int = 0,
    ) -> Sample:
        require_depth(depth)
        require_spells(tokenizer, self)
        haystack = self._drawn(seed)
        layout = Layout(haystack, f"{self.name} {seed} places", depth)
        least = prompt_tokens(tokenizer, layout.text(0))
        if least > tokens:
            raise too_short(self.name, tokens, least)
        lines = most(
            lambda lines: prompt_tokens(tokenizer, layout.text(lines)),
            limit=tokens,
            guess=FIRST_GUESS,
        )
        return written(tokenizer, self.name, layout.text(lines), haystack.needles[0])

    def noise(self, seed: int) -> Iterator[str]:
        return self._drawn(seed).noise

    def excerpt(self) -> str:
        hay = self._drawn(seed=0)
        lines = chain((hay.intro,), hay.needles, islice(hay.noise, 16), (hay.closing,))
        return "".join(lines) + hay.question + hay.reference

    def _drawn(self, seed: int) -> Haystack:
        return self.haystack(Draws(self.name, seed))
