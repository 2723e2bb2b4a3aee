"""Sampling against Hugging Face's own warpers, and against its own promises."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapexport.runtime.engine.bound_graph import Prediction
from snapexport.runtime.requests.request import SamplingParams
from snapexport.runtime.requests.sampling import _draw, choices, generator, sample

VOCABULARY = 97
MANY = 1000
"""Tokens in several blocks: top-k of less than 16 goes by their largest."""


def logits_of(seed: int, vocabulary: int = VOCABULARY) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=3, size=vocabulary).astype(np.float32)


def predicted(logits: NDArray[np.float32]) -> Prediction:
    """A prediction of a build without top tokens."""
    return Prediction(lambda: logits)


def probabilities(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    tokens, weights = choices(predicted(logits), params)
    dense = np.zeros(len(logits))
    dense[tokens] = weights / weights.sum()
    return dense


@given(
    st.integers(0, 10_000),
    st.floats(0.05, 5),
    st.one_of(st.integers(0, 30), st.integers(0, MANY + 5)),
    st.sampled_from([0.01, 0.3, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.001, 0.1, 0.9, 1.0]),
)
def test_sampling_distribution_equals_hugging_faces(
    seed: int, temperature: float, k: int, p: float, min_p: float
) -> None:
    logits = logits_of(seed, MANY)
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    expected = warped(logits, params)
    np.testing.assert_allclose(probabilities(logits, params), expected, atol=1e-9)


def warped(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """The distribution by Hugging Face's warpers, in vLLM's order."""
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    chain = [warpers.TemperatureLogitsWarper(params.temperature)]
    chain += [warpers.MinPLogitsWarper(params.min_p)] if params.min_p else []
    chain += [warpers.TopKLogitsWarper(params.top_k)] if params.top_k else []
    chain += [warpers.TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    for warper in chain:
        scores = warper(None, scores)
    distribution: NDArray[np.float64] = scores.softmax(-1)[0].numpy()
    return distribution


@given(st.integers(0, 10_000))
def test_greedy_takes_the_likeliest_and_draws_nothing(seed: int) -> None:
    logits, rng = logits_of(seed), generator(SamplingParams(seed=1))
    before = rng.bit_generator.state
    assert sample(predicted(logits), SamplingParams(), rng) == int(np.argmax(logits))
    assert rng.bit_generator.state == before


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1, top_k=1),
        SamplingParams(temperature=1, top_p=1e-9),
        SamplingParams(temperature=1e-320),
    ],
)
def test_narrowest_sampling_settings_are_greedy(params: SamplingParams) -> None:
    logits = logits_of(3)
    assert sample(predicted(logits), params, generator(params)) == int(np.argmax(logits))


def test_same_seed_same_tokens_whatever_neighbours_draw() -> None:
    params = SamplingParams(temperature=1.0, seed=7)
    rows = [predicted(logits_of(step)) for step in range(20)]
    alone, beside, neighbour = generator(params), generator(params), generator(params)
    expected = [sample(row, params, alone) for row in rows]
    drawn = []
    for row in rows:
        drawn.append(sample(row, params, beside))
        sample(predicted(row.logits[::-1]), params, neighbour)
    assert drawn == expected


def test_requests_without_a_seed_differ() -> None:
    params = SamplingParams(temperature=1.0)
    assert generator(params).random() != generator(params).random()


def test_tokens_come_as_often_as_their_probability_says() -> None:
    params = SamplingParams(temperature=0.8, top_k=5, seed=0)
    logits, rng, draws = logits_of(1), generator(params), 20_000
    counts = Counter(sample(predicted(logits), params, rng) for _ in range(draws))
    expected = probabilities(logits, params)
    assert set(counts) == set(np.flatnonzero(expected))
    for token, count in counts.items():
        assert abs(count / draws - expected[token]) < 0.02


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_nan_or_infinite_logit_allows_no_choice(broken: float) -> None:
    logits = logits_of(0)
    assert predicted(logits).is_finite
    logits[5] = broken
    assert not predicted(logits).is_finite


def test_masked_tokens_allow_no_choice_only_if_all_are_masked() -> None:
    logits = np.full(VOCABULARY, -np.inf, np.float32)
    assert not predicted(logits).is_finite
    logits[5] = -3.0
    assert predicted(logits).is_finite


def test_masked_tokens_are_never_drawn() -> None:
    logits = np.full(VOCABULARY, -np.inf, np.float32)
    logits[[4, 9]] = 1.0
    params = SamplingParams(temperature=2.0, seed=0)
    rng = generator(params)
    assert {sample(predicted(logits), params, rng) for _ in range(100)} == {4, 9}


def test_top_p_keeps_no_more_than_what_reaches_it() -> None:
    """Four equal tokens and a half of the probability: two of them reach it exactly."""
    equal = predicted(np.zeros(4, np.float32))
    tokens, weights = choices(equal, SamplingParams(temperature=1, top_p=0.5))
    assert list(tokens) == [0, 1, 2, 3] and list(weights) == [1, 1, 0, 0]


@given(st.integers(0, 10_000), st.integers(1, 300), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_where_the_sums_exceed_the_share(seed: int, size: int, share: float) -> None:
    """Sums by blocks give the same index as sums one by one, and never one of weight zero."""
    rng = np.random.default_rng(seed)
    weights = rng.random(size) * (rng.random(size) < 0.3)
    weights[rng.integers(size)] = 1e-3
    drawn, sums = _draw(weights, share), np.cumsum(weights)
    assert weights[drawn] > 0
    assert sums[drawn] >= share * sums[-1] - 1e-9
    assert sums[drawn] - weights[drawn] <= share * sums[-1] + 1e-9


def test_the_largest_share_is_the_last_token_that_has_a_weight() -> None:
    weights = np.array([0.0, 0.1, 0.0, 0.2, 0.0, 0.0])
    assert _draw(weights, float(np.nextafter(1, 0))) == 3 and _draw(weights, 0.0) == 1
