"""Log probabilities beside the tokens: of the raw distribution, the likeliest first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.runtime.requests.sampling import logprobs

from .fake_executor import FakeExecutor, make_limits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    exact = logits.astype(np.longdouble)
    return exact - np.log(np.exp(exact).sum())


@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(0, 49))
def test_logprobs_equal_those_of_a_softmax(seed: int, count: int, token: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 5, 50).astype(np.float32)
    found, expected = logprobs(logits, token, count), log_softmax(logits)
    assert found.token_id == token
    assert found.logprob == pytest.approx(float(expected[token]), abs=1e-9)
    order = np.argsort(-expected, kind="stable")[:count]
    assert [one for one, _ in found.top] == order.tolist()
    assert [value for _, value in found.top] == pytest.approx(
        expected[order].astype(float).tolist()
    )


def test_equal_logprobs_list_the_lower_token_first() -> None:
    logits = np.array([1, 3, 3, 0, 3, 3], np.float32)
    assert [token for token, _ in logprobs(logits, 0, 3).top] == [1, 2, 4]


def test_logprobs_of_a_small_vocabulary_list_all_of_it() -> None:
    assert len(logprobs(np.zeros(4, np.float32), 1, 20).top) == 4


def test_a_masked_token_has_logprob_minus_infinity() -> None:
    found = logprobs(np.array([0, -np.inf], np.float32), 1, 2)
    assert found.logprob == -np.inf and found.top == ((0, 0.0), (1, -np.inf))


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_logprobs_do_not_depend_on_the_temperature(temperature: float) -> None:
    llm = LLM.from_executor(FakeExecutor(make_limits()))
    params = SamplingParams(8, temperature, top_k=3, seed=1, logprobs=2)
    (completion,) = llm.generate([1, 2, 3], params)
    assert [one.token_id for one in completion.logprobs] == list(completion.token_ids)
    engine = FakeExecutor(make_limits())
    history = [1, 2, 3]
    for one in completion.logprobs:
        expected = log_softmax(engine._next(history, False))
        assert one.logprob == pytest.approx(float(expected[one.token_id]), abs=1e-6)
        assert one.top[0][0] == int(expected.argmax()) and len(one.top) == 2
        history.append(one.token_id)


def test_logprobs_come_only_if_the_parameters_want_them() -> None:
    llm = LLM.from_executor(FakeExecutor(make_limits()))
    silent, none = llm.generate([[1], [1]], [SamplingParams(4), SamplingParams(4, logprobs=0)])
    assert silent.logprobs == () and silent.token_ids == none.token_ids
    assert [one.top for one in none.logprobs] == [()] * 4


@pytest.mark.parametrize("count", [-1, 21, 2.0, True, "5"])
def test_wrong_logprobs_counts_are_refused(count: object) -> None:
    with pytest.raises(UserError, match="logprobs"):
        SamplingParams(logprobs=count)  # type: ignore[arg-type]


def test_submit_takes_a_request_that_read_has_checked() -> None:
    llm = LLM.from_executor(FakeExecutor(make_limits(batch=1)))
    request = llm.read([1, 2], SamplingParams(3))
    assert not llm.busy and llm.slots_used == 0
    first, second = llm.submit(request), llm.submit(request)
    assert llm.waiting == {first, second}
    llm.step()
    assert llm.waiting == {second} and llm.slots_used == 1
