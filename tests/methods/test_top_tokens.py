"""Sampling from top tokens: the same tokens as from logits, without reading the logits."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapexport.methods.top_tokens.run import TopTokens
from snapexport.runtime.engine.bound_graph import Prediction
from snapexport.runtime.requests.request import SamplingParams
from snapexport.runtime.requests.sampling import generator, graph_temperature, sample

VOCABULARY = 1000
Logits = NDArray[np.float32]


class AskedForLogitsError(AssertionError):
    pass


def no_logits() -> Logits:
    raise AskedForLogitsError


def logits_of(seed: int, scale: float = 3.0, digits: int = 6) -> Logits:
    """Few digits: many ties."""
    normal = np.random.default_rng(seed).normal(scale=scale, size=VOCABULARY)
    return normal.round(digits).astype(np.float32)


def top_tokens_of(logits: Logits, count: int, params: SamplingParams) -> TopTokens:
    """Top tokens as a graph computes them, in float32. Their logits must not be read."""
    tokens = np.argsort(-logits, kind="stable")[:count]
    divisor, largest = np.float32(graph_temperature(params)), logits.max()
    weights = np.exp((logits - largest) / divisor)
    normalizer = float(largest / divisor + np.log(weights.sum(dtype=np.float32)))
    return TopTokens(no_logits, tokens, logits[tokens], normalizer)


def token_without_logits(logits: Logits, count: int, params: SamplingParams) -> int:
    """Raises if they are read."""
    prediction = top_tokens_of(logits, count, params)
    assert prediction.is_finite
    return sample(prediction, params, generator(params))


def token(logits: Logits, params: SamplingParams) -> int:
    return sample(Prediction(lambda: logits), params, generator(params))


@given(
    st.integers(0, 10_000),
    st.sampled_from([1, 6]),
    st.sampled_from([0.5, 3.0, 10.0]),
    st.one_of(st.just(0.0), st.floats(1e-3, 5), st.sampled_from([1e-320, 1e-30, 1e6])),
    st.one_of(st.just(0), st.integers(1, VOCABULARY + 5)),
    st.sampled_from([1e-9, 0.3, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    st.sampled_from([1, 8, 50, VOCABULARY]),
)
def test_top_tokens_give_the_same_token_as_logits(
    seed: int,
    digits: int,
    scale: float,
    temperature: float,
    k: int,
    p: float,
    min_p: float,
    count: int,
) -> None:
    logits = logits_of(seed, scale, digits)
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=min_p, seed=seed)
    try:
        found = token_without_logits(logits, count, params)
    except AskedForLogitsError:
        assert temperature and not 0 < k <= count, "greedy and small top-k need no logits"
    else:
        assert found == token(logits, params)


@pytest.mark.parametrize(
    ("choice", "answers"),
    [
        ({}, True),
        ({"temperature": 0.7, "top_k": 50}, True),
        ({"temperature": 0.7, "top_k": 50, "top_p": 0.9}, True),
        ({"temperature": 0.7, "top_p": 0.9}, True),
        ({"temperature": 0.05, "top_p": 0.9}, True),
        ({"temperature": 0.7, "top_k": 51}, False),
        ({"temperature": 5.0, "top_p": 0.9}, False),
        ({"temperature": 0.7}, False),
        ({"temperature": 0.7, "min_p": 0.1}, True),
        ({"temperature": 5.0, "min_p": 0.01}, False),
    ],
)
def test_sampling_needs_logits_only_where_top_tokens_cannot_decide(
    choice: dict[str, Any], answers: bool
) -> None:
    """With 50 top tokens: at a high temperature they have less than 0.9 of the probability."""
    for seed in range(50):
        params, logits = SamplingParams(seed=seed, **choice), logits_of(seed)
        if answers:
            assert token_without_logits(logits, 50, params) == token(logits, params)
        else:
            with pytest.raises(AskedForLogitsError):
                token_without_logits(logits, 50, params)


def test_a_normalizer_within_rounding_of_the_decision_is_not_used() -> None:
    """Two tokens of a half each reach top-p 0.5 with one of them, or with both."""
    logits = np.full(VOCABULARY, -np.inf, np.float32)
    logits[[3, 7]] = 1.0
    params = SamplingParams(temperature=1, top_p=0.5, seed=0)
    with pytest.raises(AskedForLogitsError):
        token_without_logits(logits, 8, params)
    assert token_without_logits(logits, 8, SamplingParams(temperature=1, top_p=0.4, seed=0)) == 3


@pytest.mark.parametrize("normalizer", [math.nan, math.inf, -math.inf])
def test_a_nan_or_infinite_normalizer_allows_no_choice(normalizer: float) -> None:
    logits = logits_of(0)
    assert not TopTokens(no_logits, np.arange(3), logits[:3], normalizer).is_finite


def test_logits_are_fetched_once() -> None:
    fetched = []
    prediction = Prediction(lambda: fetched.append(1) or logits_of(0))  # type: ignore[func-returns-value]
    assert prediction.logits is prediction.logits and len(fetched) == 1


@pytest.mark.parametrize("temperature", [0, 1e-320, 1e-30, 0.7, 1e30, 1e300])
def test_graphs_get_a_temperature_that_float32_can_divide_by(temperature: float) -> None:
    given = np.float32(graph_temperature(SamplingParams(temperature=temperature)))
    assert 0 < given < np.inf
    assert np.isfinite(np.float32(1000) / given) and np.float32(-np.inf) / given == -np.inf
