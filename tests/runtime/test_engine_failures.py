"""An engine that raises: whom it was working for hears of it, and nobody else."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from snapexport.runtime.decode_inputs import Integers, Temperatures
from snapexport.runtime.llm import LLM
from snapexport.runtime.predictions import Prediction, Predictions
from snapexport.runtime.requests import OutputDelta, SamplingParams

from .fake_executor import FakeExecutor, make_limits

LENGTH = 7
"""Prompts of this length are the ones that fail."""
PARAMS = SamplingParams(max_tokens=6)


class FailingEngine(FakeExecutor):
    """Raises in prefill or in decode for a prompt of LENGTH, once it has done half of its work."""

    def __init__(self, in_prefill: bool = False, in_decode: bool = False) -> None:
        super().__init__(make_limits())
        self.fails_in_prefill, self.fails_in_decode = in_prefill, in_decode
        self.cleared: list[int] = []

    def prefill(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float = 1.0,
    ) -> Prediction:
        said = super().prefill(slot, token_ids, past_length, prompt_length, temperature)
        if self.fails_in_prefill and prompt_length == LENGTH:
            raise RuntimeError("planted")
        return said

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Temperatures | None = None,
    ) -> Predictions:
        if self.fails_in_decode and LENGTH in prompt_length:
            raise RuntimeError("planted")
        return super().decode(input_ids, position_ids, prompt_length, temperature)

    def clear(self, slot: int) -> None:
        self.cleared.append(slot)
        super().clear(slot)


def prompt(length: int) -> list[int]:
    return [length] * length


def alone(length: int) -> tuple[int, ...]:
    (completion,) = LLM.from_executor(FakeExecutor(make_limits())).generate(prompt(length), PARAMS)
    return completion.token_ids


def drain(llm: LLM) -> dict[int, list[OutputDelta]]:
    told: dict[int, list[OutputDelta]] = defaultdict(list)
    while llm.busy:
        for delta in llm.step():
            told[delta.request_id].append(delta)
    return told


def ids(deltas: list[OutputDelta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.token_ids)


def assert_failed(deltas: list[OutputDelta]) -> None:
    last = deltas[-1]
    assert last.finish_reason == "error" and str(last.exception) == "planted"
    assert all(one.exception is None for one in deltas[:-1])


def test_a_failing_prefill_ends_its_request_and_no_other() -> None:
    engine = FailingEngine(in_prefill=True)
    llm = LLM.from_executor(engine)
    first, fails, later = (llm.submit(prompt(length), PARAMS) for length in (4, LENGTH, 5))
    told = drain(llm)
    assert_failed(told[fails])
    assert len(told[fails]) == 1 and len(engine.cleared) == 1
    assert ids(told[first]) == alone(4) and ids(told[later]) == alone(5)


class UnreadableEngine(FakeExecutor):
    """Its logits can't be fetched after the prefill of a prompt of LENGTH."""

    def prefill(self, *chunk: Any, **more: Any) -> Prediction:
        said = super().prefill(*chunk, **more)
        return Prediction(lambda: 1 / 0) if len(self.in_prefill) == LENGTH else said


def test_logits_that_cannot_be_fetched_end_their_request_and_no_other() -> None:
    llm = LLM.from_executor(UnreadableEngine(make_limits()))
    fails, other = (llm.submit(prompt(length), PARAMS) for length in (LENGTH, 5))
    told = drain(llm)
    (last,) = told[fails]
    assert last.finish_reason == "error" and isinstance(last.exception, ZeroDivisionError)
    assert ids(told[other]) == alone(5)


def test_what_others_gained_in_the_same_step_is_not_lost() -> None:
    llm = LLM.from_executor(FailingEngine(in_prefill=True))
    runs = llm.submit(prompt(3), PARAMS)
    llm.step()
    fails = llm.submit(prompt(LENGTH), PARAMS)
    said = llm.step()
    assert [one.request_id for one in said] == [runs, fails]
    assert said[0].token_ids and said[1].finish_reason == "error"


def test_a_failing_decode_ends_those_that_ran_and_not_those_that_wait() -> None:
    engine = FailingEngine(in_decode=True)
    llm = LLM.from_executor(engine)
    ran = [llm.submit(prompt(length), PARAMS) for length in (3, 2, LENGTH)]
    waited = llm.submit(prompt(5), PARAMS)
    told = drain(llm)
    for request_id in ran:
        assert_failed(told[request_id])
    assert ids(told[waited]) == alone(5)
    assert sorted(engine.cleared) == [0, 1, 2]
    assert llm.slots_used == 0 and not llm.waiting


def test_generate_and_stream_raise_what_the_engine_raised() -> None:
    llm = LLM.from_executor(FailingEngine(in_decode=True))
    with pytest.raises(RuntimeError, match="planted"):
        llm.generate([prompt(4), prompt(LENGTH)], PARAMS)
    assert not llm.busy
    stream = llm.stream(prompt(LENGTH), PARAMS)
    next(stream)
    with pytest.raises(RuntimeError, match="planted"):
        next(stream)
    assert llm.generate(prompt(4), PARAMS)[0].token_ids == alone(4)


def test_an_engine_that_cannot_even_clear_is_told_of_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = LLM.from_executor(FailingEngine(in_prefill=True))
    monkeypatch.setattr(FailingEngine, "clear", lambda *_: 1 / 0)
    fails = llm.submit(prompt(LENGTH), PARAMS)
    assert_failed(drain(llm)[fails])


def test_failures_at_random_leave_the_others_what_they_are_alone() -> None:
    rng = np.random.default_rng(0)
    llm = LLM.from_executor(FailingEngine(in_prefill=True))
    lengths = {llm.submit(prompt(n), PARAMS): n for n in rng.integers(1, 12, 100).tolist()}
    told = drain(llm)
    for request_id, length in lengths.items():
        if length == LENGTH:
            assert_failed(told[request_id])
        else:
            assert ids(told[request_id]) == alone(length)
