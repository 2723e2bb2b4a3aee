"""Decides when a decode step checks drafts of the next tokens, from measured times.

A step of several tokens takes longer than one of a single token, and a draft by multi-token
prediction (MTP) takes time of its own. Both pay where the drafts that are expected to be right
outweigh that. All of it is measured while requests run: the time of steps, and how often a
request's drafts turn out right. That is also seen where a draft of prompt lookup was not checked.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

_SHARE = 0.2
"""Share of the newest sample in a running mean."""
_FIRST_GUESS = 0.3
"""Share of right drafts of prompt lookup before any was seen."""
_FIRST_GUESS_MTP = 0.8
"""The same of multi-token prediction: DeepSeek-V3's report has 0.85 to 0.9."""
_REST = 0.002
"""How fast that guess comes back while nothing is drafted: a few drafts in hundreds of steps."""
_MARGIN = 1.15
"""How much better a step of several tokens has to look: both sides are estimates."""
_WARM_UP = 2
"""Steps of a kind until its time counts: the first one allocates memory."""
_FORGET = 0.99
"""A step that was once slow, as beside other work, is tried again after a while."""
_FORGET_MTP = 0.999
"""The same where multi-token prediction may draft, which it can in every step."""

Kind = Literal["single", "several", "draft"]
"""Decode steps of a single token and of several, and drafts by multi-token prediction."""


@dataclass(slots=True)
class Acceptance:
    """How often a request's drafts are right: `rate` of single tokens."""

    rate: float = _FIRST_GUESS

    @classmethod
    def of_mtp(cls) -> "Acceptance":
        """Of drafts by multi-token prediction, of which none was seen."""
        return cls(_FIRST_GUESS_MTP)

    def rest(self) -> None:
        """A step went by in which multi-token prediction did not draft."""
        self.rate += _REST * (_FIRST_GUESS_MTP - self.rate)

    def saw(self, right: int, wrong: int) -> None:
        """Take in drafted tokens that were compared with the text; after a wrong one none is."""
        for hit in (*[1.0] * right, *[0.0] * wrong):
            self.rate += _SHARE * (hit - self.rate)

    def expected(self, drafted: int) -> float:
        """Right tokens to expect of a draft: each counts only if those before it are right."""
        return sum(self.rate**length for length in range(1, drafted + 1))


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a request's last one. acceptance: of their source, which learns from
    them; None for those of a continuation, which are given.
    """

    tokens: Sequence[int] = ()
    acceptance: Acceptance | None = field(default=None, compare=False)

    @property
    def expected(self) -> float:
        """How many of them are likely to be right."""
        count = len(self.tokens)
        return self.acceptance.expected(count) if self.acceptance else count


class StepTimes:
    """Running means of the seconds of steps, by the batch slots that they run."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, Kind], float] = {}
        self._samples: Counter[tuple[int, Kind]] = Counter()

    @contextmanager
    def measured(self, size: int, kind: Kind) -> Iterator[None]:
        """Time a step."""
        start = time.perf_counter()
        yield
        self.saw(size, kind, time.perf_counter() - start)

    def saw(self, size: int, kind: Kind, seconds: float) -> None:
        """Take in the time of a step."""
        key = size, kind
        self._samples[key] += 1
        if self._samples[key] > _WARM_UP:
            seconds = self._seconds[key] + _SHARE * (seconds - self._seconds[key])
        self._seconds[key] = seconds

    def pays(self, size: int, running: int, expected: float, by_mtp: float = 0.0) -> bool:
        """Whether a step that gives `expected` more tokens beside `running` ones is worth it.

        by_mtp: still more, if multi-token prediction drafts before the step.
        """
        if not self._knows(size, "single"):
            return False
        if not self._knows(size, "several") or (by_mtp and not self._knows(size, "draft")):
            return True
        single, several = self._seconds[size, "single"], self._seconds[size, "several"]
        draft = self._seconds[size, "draft"] if by_mtp else 0.0
        gained, lookup = running + expected + by_mtp, running + expected
        if _MARGIN * (several + draft) / single < gained / running:
            return not by_mtp or (several + draft) / several < gained / lookup
        self._forget(size, "several", single, _FORGET_MTP if by_mtp else _FORGET)
        if by_mtp:
            self._forget(size, "draft", 0.0, _FORGET_MTP)
        return False

    def _knows(self, size: int, kind: Kind) -> bool:
        return self._samples[size, kind] >= _WARM_UP

    def _forget(self, size: int, kind: Kind, least: float, share: float) -> None:
        self._seconds[size, kind] = max(least, share * self._seconds[size, kind])
