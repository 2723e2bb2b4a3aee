"""Defines what guesses tokens ahead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from snapexport.runtime.arrays import Floats, Integers
from snapexport.runtime.requests.generation import Generation

_SHARE = 0.2
"""Share of the newest sample in a running mean."""


class StepInputs(NamedTuple):
    """Of a decode step, [n] each, by batch slot. slots: of each running request."""

    slots: Mapping[int, int]
    input_ids: Integers
    position_ids: Integers
    prompt_length: Integers
    temperature: Floats


class Drafter:
    """Drafts for all running requests. Those that it has none for are left out.

    takes_time: whether `propose` runs a graph. It is then asked only where that pays.
    """

    takes_time = False

    def expected(self, request_id: int) -> float:
        """Tokens of a draft that are likely to be right, before it is made, if `takes_time`."""
        return 0.0

    def propose(self, lives: Sequence[Generation], step: StepInputs) -> "Mapping[int, Draft]":
        """Up to `room` tokens that may follow the last one of each request, by its id."""
        return {}

    def learn(self, request_id: int, right: int, wrong: int) -> None:
        """So many tokens of a draft were right, and then one or none was wrong."""

    def rest(self, request_id: int) -> None:
        """A step went by for which it was not asked."""

    def forget(self, request_id: int) -> None:
        """The request has ended."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a request's last one.

    expected: how many of them are likely to be right. drafter: None if the tokens are given.
    """

    tokens: Sequence[int]
    expected: float
    drafter: Drafter | None


@dataclass(slots=True)
class Acceptance:
    """How often a request's drafts are right: `rate` of single tokens."""

    rate: float

    def saw(self, right: int, wrong: int) -> None:
        """Take in drafted tokens that were compared with the text; after a wrong one none is."""
        for hit in (*[1.0] * right, *[0.0] * wrong):
            self.rate += _SHARE * (hit - self.rate)

    def expected(self, drafted: int) -> float:
        """Right tokens to expect of a draft: each counts only if those before it are right."""
        return sum(self.rate**length for length in range(1, drafted + 1))
