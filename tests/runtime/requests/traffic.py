"""Random traffic on an LLM: requests arrive, end and are cancelled beside each other."""

import random
from typing import Any

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases


def assert_neighbours_change_nothing(llm: LLM, alone: LLM, count: int) -> None:
    """Every request gets the tokens that `alone` gives it, up to where it is cancelled."""
    rng = random.Random(1)
    submitted: dict[int, tuple[Any, SamplingParams]] = {}
    got: dict[int, list[int]] = {}
    cancelled = set()
    while len(submitted) < count or llm.busy:
        if len(submitted) < count and rng.random() < 0.5:
            prompt = cases.prompt(rng.randint(1, 96), len(submitted))
            params = SamplingParams(rng.randint(1, 10), 0.8, seed=len(submitted), ignore_eos=True)
            submitted[llm.submit(prompt, params)] = prompt, params
        if submitted and rng.random() < 0.1:
            cancelled.add(victim := rng.choice(list(submitted)[-8:]))
            llm.cancel(victim)
        for delta in llm.step():
            got.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert cancelled
    for request_id, (prompt, params) in submitted.items():
        (expected,) = alone.generate([prompt], params)
        length = len(got[request_id]) if request_id in cancelled else len(expected.token_ids)
        assert tuple(got[request_id]) == expected.token_ids[:length]
