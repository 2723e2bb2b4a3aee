"""The harness's generation arguments become sampling parameters."""

import random
from typing import Any

import pytest

from snapexport import SamplingParams
from snapexport.errors import UserError
from tools.studies.lm_eval.arguments import sampling_params


@pytest.mark.parametrize(
    ("arguments", "params"),
    [
        ({}, SamplingParams(max_tokens=256)),
        ({"until": "\n", "max_gen_toks": 5}, SamplingParams(max_tokens=5, stop=("\n",))),
        ({"until": ["a", ""], "max_tokens": 5}, SamplingParams(max_tokens=5, stop=("a",))),
        ({"do_sample": False, "temperature": 1}, SamplingParams()),
        ({"do_sample": True, "seed": 3}, SamplingParams(temperature=1.0, seed=3)),
        (
            {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 3, "num_beams": 1},
            SamplingParams(temperature=0.5, top_p=0.9, top_k=4, seed=3),
        ),
    ],
)
def test_generation_arguments_become_sampling_params(
    arguments: dict[str, Any], params: SamplingParams
) -> None:
    assert sampling_params(arguments, 256) == params


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"repetition_penalty": 1.1, "min_p": 0.1},
            "unknown .*: min_p, repetition_penalty",
        ),
        ({"num_beams": 4}, "num_beams 4"),
        ({"max_gen_toks": 5, "max_tokens": 6}, "the length is given more than once"),
        ({"temperature": -1}, "temperature -1"),
        ({"max_gen_toks": 0}, "max_tokens 0"),
        ({"until": 3}, "stop 3"),
    ],
)
def test_wrong_generation_arguments_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        sampling_params(arguments, 256)


def test_sampling_repeats_with_the_harness_seed() -> None:
    def draw(seed: int) -> list[int | None]:
        random.seed(seed)
        return [sampling_params({"do_sample": True}, 8).seed for _ in range(2)]

    assert draw(1) == draw(1) != draw(2)
    assert len(set(draw(1))) == 2
