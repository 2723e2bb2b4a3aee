"""Drafts what is given: the rest of a request's continuation."""

from collections.abc import Mapping, Sequence

from snapexport.runtime.requests.drafters.drafter import Draft, Drafter, StepInputs
from snapexport.runtime.requests.generation import Generation


class Continuation(Drafter):
    """For requests whose next tokens are given: no other drafter is asked for these."""

    def propose(self, lives: Sequence[Generation], step: StepInputs) -> Mapping[int, Draft]:
        found = {live.request_id: live.given(live.room) for live in lives if live.is_forced}
        return {request: Draft(tokens, len(tokens), None) for request, tokens in found.items()}
