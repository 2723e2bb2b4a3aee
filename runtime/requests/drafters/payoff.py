"""Decides when a decode step checks drafts of the next tokens, from measured times.

A step of several tokens takes longer than one of a single token, and a draft by multi-token
prediction (MTP) takes time of its own. Both pay where the drafts that are expected to be right
outweigh that. All of it is measured while requests run: the time of steps, and how often a
request's drafts turn out right. That is also seen where a draft of prompt lookup was not checked.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

_SHARE = 0.2
"""Share of the newest sample in a running mean."""
_MARGIN = 1.15
"""How much better a step of several tokens has to look: both sides are estimates."""
_WARM_UP = 2
"""Steps of a kind until its time counts: the first one allocates memory."""
_EXPLORE = 0.99
"""A step that was once slow, as beside other work, is tried again after a while."""
_EXPLORE_MTP = 0.999
"""The same where multi-token prediction may draft, which it can in every step."""

Kind = Literal["single", "several", "draft"]
"""Decode steps of a single token and of several, and drafts by multi-token prediction."""


class Payoff:
    """Running means of the seconds of steps, by the batch slots that they run.

    A kind of step that does not pay is tried again after a while: its time may have been measured
    beside other work.
    """

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
        self._explore(size, "several", single, _EXPLORE_MTP if by_mtp else _EXPLORE)
        if by_mtp:
            self._explore(size, "draft", 0.0, _EXPLORE_MTP)
        return False

    def _knows(self, size: int, kind: Kind) -> bool:
        return self._samples[size, kind] >= _WARM_UP

    def _explore(self, size: int, kind: Kind, least: float, share: float) -> None:
        """Believe a little less in a time, so that it looks worth a trial some day."""
        self._seconds[size, kind] = max(least, share * self._seconds[size, kind])
