"""Sampling parameters: valid values, and invalid ones, which are refused at construction."""

import math
from typing import Any

import numpy as np
import pytest

from snapexport.errors import UserError
from snapexport.runtime.requests.request import MAX_STOP_CHARACTERS, MAX_STOPS, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", 2.0),
        ("seed", -1),
        ("seed", "x"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", 7),
        ("stop", None),
        ("ignore_eos", 1),
    ],
)
def test_invalid_sampling_parameters_are_refused(name: str, value: object) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(UserError) as refusal:
        SamplingParams(**fields)
    assert name in refusal.value.message and name in refusal.value.hint


def test_too_many_or_too_long_stop_texts_are_refused_in_few_words() -> None:
    """Each token is held against all of them, and everybody waits for that."""
    SamplingParams(stop=["x" * MAX_STOP_CHARACTERS] * MAX_STOPS)
    for stop in (["x"] * (MAX_STOPS + 1), ["x", "x" * (MAX_STOP_CHARACTERS + 1)]):
        with pytest.raises(UserError, match="stop has") as refusal:
            SamplingParams(stop=stop)
        assert len(str(refusal.value)) < 200


def test_one_stop_text_is_one_stop_string() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_sampling_parameters_take_numpy_numbers_and_limits() -> None:
    numbers: Any = {"max_tokens": np.int64(1), "temperature": np.float32(0), "top_p": 1}
    assert SamplingParams(**numbers).max_tokens == 1


def test_sampling_parameters_are_immutable_values() -> None:
    assert SamplingParams(stop=["a"]) == SamplingParams(stop=("a",))
    assert len({SamplingParams(seed=1), SamplingParams(seed=1)}) == 1
