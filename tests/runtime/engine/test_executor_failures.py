"""An executor that raises ends the requests of that call, and no others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from snapexport.runtime.engine.bound_graph import Prediction, Predictions
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, SamplingParams
from tests.runtime.requests.fake_executor import FakeExecutor, drain, make_limits

LENGTH = 7
"""Prompts of this length are the ones that fail."""
PARAMS = SamplingParams(max_tokens=6)


class FailingExecutor(FakeExecutor):
    """Raises in prefill or in decode for a prompt of LENGTH, once it has done half of its work."""

    def __init__(self, in_prefill: bool = False, in_decode: bool = False) -> None:
        super().__init__(make_limits())
        self.fails_in_prefill, self.fails_in_decode = in_prefill, in_decode
        self.cleared: list[int] = []

    def take(self, slot: int, prompt: Sequence[int], *rest: Any, **options: Any) -> Prediction:
        prediction = super().take(slot, prompt, *rest, **options)
        if self.fails_in_prefill and len(prompt) == LENGTH:
            raise RuntimeError("planted")
        return prediction

    def decode(self, *given: Any, **options: Any) -> Predictions:
        if self.fails_in_decode and LENGTH in given[2]:  # prompt_length
            raise RuntimeError("planted")
        return super().decode(*given, **options)

    def clear(self, slot: int) -> None:
        self.cleared.append(slot)
        super().clear(slot)


def prompt(length: int) -> list[int]:
    return [length] * length


def alone(length: int) -> tuple[int, ...]:
    (completion,) = LLM.from_executor(FakeExecutor(make_limits())).generate(prompt(length), PARAMS)
    return completion.token_ids


def ids(deltas: list[OutputDelta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.token_ids)


def assert_failed(deltas: list[OutputDelta]) -> None:
    last = deltas[-1]
    assert last.finish_reason == "error" and str(last.exception) == "planted"
    assert all(one.exception is None for one in deltas[:-1])


class UnreadableExecutor(FakeExecutor):
    """An executor whose logits can't be fetched after the prefill of a prompt of LENGTH."""

    def take(self, *work: Any, **more: Any) -> Prediction:
        prediction = super().take(*work, **more)
        return Prediction(lambda: 1 / 0) if len(self.in_prefill) == LENGTH else prediction


def test_logits_that_cannot_be_fetched_end_their_request_and_no_other() -> None:
    llm = LLM.from_executor(UnreadableExecutor(make_limits()))
    fails, other = (llm.submit(prompt(length), PARAMS) for length in (LENGTH, 5))
    deltas_of = drain(llm)
    (last,) = deltas_of[fails]
    assert last.finish_reason == "error" and isinstance(last.exception, ZeroDivisionError)
    assert ids(deltas_of[other]) == alone(5)


def test_a_failing_prefill_keeps_the_other_deltas_of_its_step() -> None:
    llm = LLM.from_executor(FailingExecutor(in_prefill=True))
    runs = llm.submit(prompt(3), PARAMS)
    llm.step()
    fails = llm.submit(prompt(LENGTH), PARAMS)
    deltas = llm.step()
    assert [one.request_id for one in deltas] == [runs, fails]
    assert deltas[0].token_ids and deltas[1].finish_reason == "error"


def test_a_failing_decode_ends_running_requests_and_no_waiting_one() -> None:
    executor = FailingExecutor(in_decode=True)
    llm = LLM.from_executor(executor)
    ran = [llm.submit(prompt(length), PARAMS) for length in (3, 2, LENGTH)]
    waited = llm.submit(prompt(5), PARAMS)
    deltas_of = drain(llm)
    for request_id in ran:
        assert_failed(deltas_of[request_id])
    assert ids(deltas_of[waited]) == alone(5)
    assert sorted(executor.cleared) == [0, 1, 2]
    assert llm.slots_used == 0 and not llm.waiting


def test_generate_and_stream_raise_the_executors_exception() -> None:
    llm = LLM.from_executor(FailingExecutor(in_decode=True))
    with pytest.raises(RuntimeError, match="planted"):
        llm.generate([prompt(4), prompt(LENGTH)], PARAMS)
    assert not llm.busy
    stream = llm.stream(prompt(LENGTH), PARAMS)
    next(stream)
    with pytest.raises(RuntimeError, match="planted"):
        next(stream)
    assert llm.generate(prompt(4), PARAMS)[0].token_ids == alone(4)


def test_an_executor_that_cannot_clear_still_ends_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = LLM.from_executor(FailingExecutor(in_prefill=True))
    monkeypatch.setattr(FailingExecutor, "clear", lambda *_: 1 / 0)
    fails = llm.submit(prompt(LENGTH), PARAMS)
    assert_failed(drain(llm)[fails])


def test_failing_prefills_end_their_requests_and_no_others() -> None:
    rng, executor = np.random.default_rng(0), FailingExecutor(in_prefill=True)
    llm = LLM.from_executor(executor)
    lengths = {llm.submit(prompt(n), PARAMS): n for n in rng.integers(1, 12, 100).tolist()}
    deltas_of = drain(llm)
    for request_id, length in lengths.items():
        if length == LENGTH:
            assert_failed(deltas_of[request_id])
            assert len(deltas_of[request_id]) == 1
        else:
            assert ids(deltas_of[request_id]) == alone(length)
    assert len(executor.cleared) == list(lengths.values()).count(LENGTH) > 0
