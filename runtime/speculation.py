"""Decides when a decode step checks drafts of the next tokens, from measured times.

A step of several tokens takes longer than one of a single token. It pays where the drafts that are
expected to be right outweigh that. Both are measured while requests run: the time of steps, and how
often a request's drafts turn out right, which is also seen where they were not checked.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_SHARE = 0.2
"""Share of the newest sample in a running mean."""
_FIRST_GUESS = 0.3
"""Share of right drafts before any was seen."""
_MARGIN = 1.15
"""How much better a step of several tokens has to look: both sides are estimates."""
_WARM_UP = 2
"""Steps of a kind until its time counts: the first one allocates memory."""
_FORGET = 0.99
"""A step that was once slow, as beside other work, is tried again after a while."""


@dataclass(slots=True)
class Acceptance:
    """How often a request's drafts are right: `rate` of single tokens."""

    rate: float = _FIRST_GUESS

    def saw(self, right: int, wrong: int) -> None:
        """Take in drafted tokens that were compared with the text; after a wrong one none is."""
        for hit in (*[1.0] * right, *[0.0] * wrong):
            self.rate += _SHARE * (hit - self.rate)

    def expected(self, drafted: int) -> float:
        """Right tokens to expect of a draft: each counts only if those before it are right."""
        return sum(self.rate**length for length in range(1, drafted + 1))


class StepTimes:
    """Running means of the seconds of steps, by the batch slots that they run."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bool], float] = {}
        self._samples: Counter[tuple[int, bool]] = Counter()

    @contextmanager
    def measured(self, size: int, several: bool) -> Iterator[None]:
        """Time a step. several: it takes several tokens of each batch slot."""
        start, key = time.perf_counter(), (size, several)
        yield
        seconds = time.perf_counter() - start
        self._samples[key] += 1
        if self._samples[key] > _WARM_UP:
            seconds = self._seconds[key] + _SHARE * (seconds - self._seconds[key])
        self._seconds[key] = seconds

    def pays(self, size: int, running: int, expected: float) -> bool:
        """Whether a step that gives `expected` more tokens beside `running` ones is worth it."""
        if self._samples[size, False] < _WARM_UP:
            return False
        if self._samples[size, True] < _WARM_UP:
            return True
        single, several = self._seconds[size, False], self._seconds[size, True]
        if _MARGIN * several / single < (running + expected) / running:
            return True
        self._seconds[size, True] = max(single, _FORGET * several)
        return False
