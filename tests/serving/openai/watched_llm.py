"""An LLM on the fake executor that keeps its requests, and can be slow or stand still."""

import time
from typing import Any

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, Request, SamplingParams
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits
from tests.runtime.tokenizers_for_tests import byte_level

SLOTS = 3
LIMITS = make_limits(batch=SLOTS, longest_prompt=200, positions=2000)


class WatchedLLM(LLM):
    """Records its requests. seconds: duration of a step. stands_still: no outputs."""

    requests: list[Request]
    seconds = 0.0
    stands_still = False

    def submit(self, prompt: Any, params: SamplingParams | None = None) -> int:
        self.requests.append(prompt)
        return super().submit(prompt, params)

    def step(self) -> list[OutputDelta]:
        self.pulse.work()
        time.sleep(self.seconds or 0.001 * self.stands_still)
        return [] if self.stands_still else super().step()


def make_llm() -> WatchedLLM:
    llm = WatchedLLM.from_executor(FakeExecutor(LIMITS), byte_level())
    assert isinstance(llm, WatchedLLM)
    llm.requests = []
    return llm
