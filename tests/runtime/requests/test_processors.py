"""Penalties, bias and bans against Hugging Face's processors and OpenAI's formulas."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.runtime.engine.bound_graph import Prediction
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.processors import Answer, process_logits, processors_of
from snapexport.runtime.requests.request import Completion, Request, SamplingParams
from snapexport.runtime.requests.speculation import Payoff
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits

VOCABULARY = 40
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=100)
PENALTY = st.sampled_from([0.0, -2.0, 0.3, 2.0])


def changed(
    logits: NDArray[np.float32], prompt: list[int], answer: list[int], **params: Any
) -> NDArray[np.float32]:
    """The logits after the answer's tokens."""
    request = Request(tuple(prompt), made := SamplingParams(**params))
    processors = processors_of(Answer(request, made, frozenset([3])))
    for token in answer:
        for processor in processors:
            processor.took(token)
    return process_logits(Prediction(lambda: logits), processors).logits


def logits_of(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=3, size=VOCABULARY).astype(np.float32)


@given(st.integers(0, 1000), TOKENS, TOKENS, st.sampled_from([0.5, 1.3, 8.0]))
def test_repetition_penalty_is_hugging_faces_over_prompt_and_answer(
    seed: int, prompt: list[int], answer: list[int], penalty: float
) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    processor = theirs.RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([prompt + answer]), torch.from_numpy(logits_of(seed))[None])
    found = changed(logits_of(seed), prompt, answer, repetition_penalty=penalty)
    np.testing.assert_allclose(found, expected[0].numpy(), rtol=1e-6)


@given(st.integers(0, 1000), TOKENS, TOKENS, PENALTY, PENALTY)
def test_presence_and_frequency_follow_openais_formula_over_the_answer(
    seed: int, prompt: list[int], answer: list[int], presence: float, frequency: float
) -> None:
    logits, counts = logits_of(seed), Counter(answer)
    expected = [
        logit - counts[token] * frequency - (counts[token] > 0) * presence
        for token, logit in enumerate(logits.tolist())
    ]
    penalties = {"presence_penalty": presence, "frequency_penalty": frequency}
    np.testing.assert_allclose(changed(logits, prompt, answer, **penalties), expected, atol=1e-4)


def test_bias_comes_before_the_repetition_penalty() -> None:
    """As in vLLM: a logit of -1 that a bias makes 4 is divided, not multiplied."""
    logits = np.full(VOCABULARY, -1, np.float32)
    found = changed(logits, [5], [], logit_bias={5: 5.0, 6: -3.0}, repetition_penalty=2.0)
    assert found[[5, 6, 7]].tolist() == [2.0, -4.0, -1.0]
    assert (logits == -1).all(), "the model's own logits stay"


def test_end_tokens_are_banned_until_there_are_enough_tokens() -> None:
    for count in range(4):
        found = changed(logits_of(0), [1], [7] * count, min_tokens=2)
        assert (found[3] < -1e29) == (count < 2) and found[4] > -1e29


def test_a_request_without_options_has_no_processors() -> None:
    params = SamplingParams(temperature=1, top_p=0.5, min_p=0.1, logit_bias={}, seed=1)
    prediction = Prediction(lambda: logits_of(0))
    assert processors_of(Answer(Request((1,), params), params, frozenset([3]))) == ()
    assert process_logits(prediction, ()) is prediction


@pytest.mark.parametrize(
    "given",
    [
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"frequency_penalty": "1"},
        {"repetition_penalty": 1e-46},
        {"repetition_penalty": float("inf")},
        {"min_p": 1.1},
        {"min_p": float("nan")},
        {"min_tokens": -1},
        {"min_tokens": 9, "max_tokens": 8},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {"1": 1.0}},
        {"logit_bias": [1]},
    ],
)
def test_values_beyond_vllms_limits_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(given))):
        SamplingParams(**given)


def test_a_larger_bias_counts_as_100() -> None:
    assert SamplingParams(logit_bias={1: 1e9, 2: -1e9}).logit_bias == {1: 100.0, 2: -100.0}


def test_a_bias_of_an_unknown_token_is_refused() -> None:
    with pytest.raises(UserError, match="257 is not a token"):
        fake(1).generate([[1]], SamplingParams(logit_bias={257: 1}))


@pytest.fixture
def always() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Payoff, "pays", lambda *_: True)
        yield


def fake(tokens_per_step: int, vocab_size: int = 257, **limits: Any) -> LLM:
    made = make_limits(vocab_size=vocab_size, step_tokens=tokens_per_step, **limits)
    return LLM.from_executor(FakeExecutor(made, drafts=tokens_per_step > 1))


def outputs(completions: list[Completion]) -> list[Any]:
    return [(one.token_ids, one.finish_reason, one.logprobs) for one in completions]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "presence_penalty": -1.0},
    {"frequency_penalty": 0.2, "logit_bias": {0: 0.4}},
    {"min_tokens": 9, "min_p": 0.3},
    {"stop_token_ids": [1], "min_tokens": 3, "repetition_penalty": 0.8},
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.usefixtures("always")
def test_drafts_leave_processed_output_as_it_is(temperature: float) -> None:
    prompts = [[0, 1, 2, 0, 1, 2], [1], [2, 2, 2], [0, 1] * 5, [1, 2, 0]]
    params = [
        SamplingParams(temperature=temperature, max_tokens=40, seed=seed, logprobs=2, **one)
        for seed, one in enumerate(OPTIONS)
    ]
    ends = {"eos_token_id": frozenset([2])}
    single = fake(1, 3, **ends).generate(prompts, params)
    several = fake(4, 3, **ends).generate(prompts, params)
    assert outputs(several) == outputs(single)
    assert sum(one.accepted for one in several) > 0
    assert len(single[3].token_ids) >= 9


def test_neighbours_keep_their_tokens_and_logprobs_are_the_models_own() -> None:
    prompts, plain = [[1, 2], [3, 4]], SamplingParams(max_tokens=20, logprobs=1)
    biased = SamplingParams(max_tokens=20, logprobs=1, logit_bias={7: 100})
    alone = fake(1).generate(prompts, plain)
    beside, other = fake(1).generate(prompts, [plain, biased])
    assert outputs([beside]) == outputs(alone[:1])
    assert set(other.token_ids) == {7}
    assert other.logprobs[0].top == alone[1].logprobs[0].top
