"""Guesses tokens ahead: chooses the drafts that a decode step checks, or none, by measured times.

A step of several tokens takes longer than one of a single token, and some drafters take time of
their own. Both pay where the drafts that are expected to be right outweigh that. All of it is
measured while requests run: the time of steps, and how often a request's drafts turn out right.
That is also seen where a draft that cost nothing was not checked.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from snapexport.runtime.engine.backend import Floats, Integers
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.generation import Generation
from snapexport.runtime.requests.request import OutputDelta

_SHARE = 0.2
"""Share of the newest sample in a running mean."""


class StepInputs(NamedTuple):
    """The inputs of a decode step, [n] each, by batch slot. slots: each running request's."""

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
        """Take in how many tokens of a draft were right, and whether one was wrong after them."""

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


_MARGIN = 1.15
"""How much better a step of several tokens has to look: both sides are estimates."""
_WARM_UP = 2
"""Steps of a kind until its time counts: the first one allocates memory."""
_EXPLORE = 0.99
"""A step that was once slow, as beside other work, is tried again after a while."""
_EXPLORE_SLOW = 0.999
"""The same where a drafter that takes time may draft, which it can in every step."""

Kind = Literal["single", "several", "draft"]
"""Decode steps of a single token and of several, and drafts that take time of their own."""


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

    def pays(self, size: int, running: int, expected: float, slow: float = 0.0) -> bool:
        """Whether a step that gives `expected` more tokens beside `running` ones is worth it.

        slow: still more, if a drafter that takes time drafts before the step.
        """
        if not self._knows(size, "single"):
            return False
        if not self._knows(size, "several") or (slow and not self._knows(size, "draft")):
            return True
        single, several = self._seconds[size, "single"], self._seconds[size, "several"]
        draft = self._seconds[size, "draft"] if slow else 0.0
        gained, lookup = running + expected + slow, running + expected
        if _MARGIN * (several + draft) / single < gained / running:
            return not slow or (several + draft) / several < gained / lookup
        self._explore(size, "several", single, _EXPLORE_SLOW if slow else _EXPLORE)
        if slow:
            self._explore(size, "draft", 0.0, _EXPLORE_SLOW)
        return False

    def _knows(self, size: int, kind: Kind) -> bool:
        return self._samples[size, kind] >= _WARM_UP

    def _explore(self, size: int, kind: Kind, least: float, share: float) -> None:
        """Believe a little less in a time, so that it looks worth a trial some day."""
        self._seconds[size, kind] = max(least, share * self._seconds[size, kind])


Drafts = Mapping[int, Draft]
"""By request id."""


class Speculation:
    """Drafters, and the measured times of steps. Without drafters no step has drafts."""

    def __init__(self, limits: Limits, drafters: Sequence[Drafter]) -> None:
        self._limits, self._payoff = limits, Payoff()
        self._most = limits.step_tokens - 1
        self._all = drafters if self._most else ()
        self._free = [drafter for drafter in self._all if not drafter.takes_time]
        self._slow = [drafter for drafter in self._all if drafter.takes_time]

    def choose(self, lives: Sequence[Generation], step: StepInputs) -> tuple[Drafts, Drafts]:
        """The drafts that the step should check: for every request, or none for any. And all that
        cost nothing, from which `learn` learns whether they are checked or not."""
        if not self._all:
            return {}, {}
        proposed = dict[int, Draft]()
        for drafter in self._free:
            others = [live for live in lives if live.request_id not in proposed]
            proposed.update(drafter.propose(others, step))
        return self._worth_checking(lives, step, proposed), proposed

    def _worth_checking(
        self, lives: Sequence[Generation], step: StepInputs, proposed: Drafts
    ) -> Drafts:
        if max(map(_position, lives)) + self._most >= self._limits.positions:
            return {}  # a full cache has no slot for such a position
        size, running = self._size(step), len(lives)
        expected = sum(draft.expected for draft in proposed.values())
        for drafter in self._slow:
            better = self._better(drafter, lives, proposed)
            gain = sum(drafter.expected(i) - _expectation(proposed, i) for i in better)
            if better and self._payoff.pays(size, running, expected, gain):
                found = self._propose_timed(drafter, lives, step)
                drafts = {**proposed, **{i: found[i] for i in better if i in found}}
                return drafts if _has_tokens(drafts) else {}
            for request_id in better:
                drafter.rest(request_id)
        pays = _has_tokens(proposed) and self._payoff.pays(size, running, expected)
        return proposed if pays else {}

    def _better(self, drafter: Drafter, lives: Sequence[Generation], proposed: Drafts) -> list[int]:
        """Requests for which it has more right tokens to be expected than what is proposed."""
        return [
            live.request_id
            for live in lives
            if not live.is_forced
            and live.room > 0
            and _expectation(proposed, live.request_id) < drafter.expected(live.request_id)
        ]

    def _propose_timed(
        self, drafter: Drafter, lives: Sequence[Generation], step: StepInputs
    ) -> Drafts:
        start = time.perf_counter()
        found = drafter.propose(lives, step)
        if found:  # else nothing was run
            self._payoff.saw(self._size(step), "draft", time.perf_counter() - start)
        return found

    def measured(self, step: StepInputs, drafts: Drafts) -> AbstractContextManager[None]:
        """Time a step."""
        return self._payoff.measured(self._size(step), "several" if drafts else "single")

    def _size(self, step: StepInputs) -> int:
        """The batch slots that a decode step runs."""
        return next(size for size in self._limits.decode_batches if size >= len(step.input_ids))

    def learn(self, draft: Draft, delta: OutputDelta) -> None:
        """Learn from a draft that was not checked whether its first token was right."""
        if draft.tokens and draft.drafter and delta.token_ids:
            right = delta.token_ids[0] == draft.tokens[0]
            draft.drafter.learn(delta.request_id, int(right), int(not right))

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        for drafter in self._all:
            drafter.forget(request_id)


def _position(live: Generation) -> int:
    return live.position


def _expectation(proposed: Drafts, request_id: int) -> float:
    draft = proposed.get(request_id)
    return draft.expected if draft else 0.0


def _has_tokens(drafts: Drafts) -> bool:
    return any(draft.tokens for draft in drafts.values())
