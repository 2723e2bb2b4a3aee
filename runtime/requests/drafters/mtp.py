"""Drafts a token by multi-token prediction (MTP): a small layer of the model's own."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from snapexport.runtime.engine.followers.follower import NO_DRAFT, Drafts
from snapexport.runtime.requests.drafters.drafter import Acceptance, Draft, Drafter, StepInputs
from snapexport.runtime.requests.generation import Generation

_FIRST_GUESS = 0.8
"""Share of right drafts before any was seen: DeepSeek-V3's report has 0.85 to 0.9."""
_REST = 0.002
"""How fast that guess comes back while nothing is drafted: a few drafts in hundreds of steps."""


class MtpDrafter(Drafter):
    """Asks the executor, for all batch slots at once."""

    takes_time = True

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts
        self._acceptance = defaultdict[int, Acceptance](lambda: Acceptance(_FIRST_GUESS))

    def expected(self, request_id: int) -> float:
        return self._acceptance[request_id].rate

    def propose(self, lives: Sequence[Generation], step: StepInputs) -> Mapping[int, Draft]:
        inputs = step.input_ids, step.position_ids, step.prompt_length
        drafted = self._drafts.draft(*inputs).tolist()
        return {
            request_id: Draft([drafted[slot]], self.expected(request_id), self)
            for request_id, slot in step.slots.items()
            if drafted[slot] != NO_DRAFT
        }

    def learn(self, request_id: int, right: int, wrong: int) -> None:
        if request_id in self._acceptance:
            self._acceptance[request_id].saw(right, wrong)

    def rest(self, request_id: int) -> None:
        acceptance = self._acceptance[request_id]
        acceptance.rate += _REST * (_FIRST_GUESS - acceptance.rate)

    def forget(self, request_id: int) -> None:
        self._acceptance.pop(request_id, None)
