"""Chooses the drafts that a decode step checks: those of one drafter or another, or none."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.drafters.drafter import Draft, Drafter, StepInputs
from snapexport.runtime.requests.drafters.payoff import Payoff
from snapexport.runtime.requests.generation import Generation
from snapexport.runtime.requests.request import OutputDelta

Drafts = Mapping[int, Draft]
"""By request id."""


class Speculation:
    """Drafters, and the measured times of steps. Without drafters no step has drafts."""

    def __init__(self, limits: Limits, drafters: Sequence[Drafter]) -> None:
        self._limits, self._payoff = limits, Payoff()
        self._most = limits.tokens_per_step - 1
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
            gain = sum(drafter.expected(i) - _expected(proposed, i) for i in better)
            if better and self._payoff.pays(size, running, expected, gain):
                found = self._timed(drafter, lives, step)
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
            and _expected(proposed, live.request_id) < drafter.expected(live.request_id)
        ]

    def _timed(self, drafter: Drafter, lives: Sequence[Generation], step: StepInputs) -> Drafts:
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


def _expected(proposed: Drafts, request_id: int) -> float:
    draft = proposed.get(request_id)
    return draft.expected if draft else 0.0


def _has_tokens(drafts: Drafts) -> bool:
    return any(draft.tokens for draft in drafts.values())
