"""Requests of Dynamo's frontend, as the runtime reads them."""

from typing import Any

import pytest

from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.serving.dynamo import handover as message
from snapexport.serving.dynamo.frontend import read
from snapexport.serving.model import Model
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits


@pytest.fixture
def model() -> Model:
    return Model("model", LLM.from_executor(FakeExecutor(make_limits(positions=50))), log=print)


def params(model: Model, **given: Any) -> SamplingParams:
    found = read(model, {"token_ids": [5, 6, 7]} | given).params
    assert found
    return found


def test_defaults_are_those_of_the_openai_api(model: Model) -> None:
    found = params(model)
    assert (found.temperature, found.top_p, found.top_k, found.seed) == (1.0, 1.0, 0, None)
    assert found.max_tokens == 50 - 3


def test_every_field_reaches_the_runtime(model: Model) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 3, "n": 1}
    ends = {"max_tokens": 9, "stop_token_ids_hidden": [2], "stop_token_ids": [8, 2]}
    found = params(
        model,
        sampling_options=sampling,
        stop_conditions=ends | {"ignore_eos": False},
        output_options={"logprobs": 2},
    )
    assert found == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        seed=3,
        stop_token_ids=(8, 2),
        logprobs=2,
    )


def test_ignore_eos_ignores_the_frontends_own_end_tokens(model: Model) -> None:
    ends = {"ignore_eos": True, "stop_token_ids_hidden": [2]}
    assert params(model, stop_conditions=ends).stop_token_ids == ()


def test_all_tokens_in_vllms_manner(model: Model) -> None:
    assert params(model, sampling_options={"top_k": -1}).top_k == 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sampling_options": {"n": 2}}, "n 2 is not supported"),
        ({"sampling_options": {"repetition_penalty": 0}}, "repetition_penalty 0 cannot be used"),
        ({"sampling_options": {"guided_decoding": {"structural_tag": {}}}}, "structural_tag"),
        ({"stop_conditions": {"min_tokens": 3, "max_tokens": 2}}, "min_tokens 3 cannot be used"),
        ({"stop_conditions": {"max_tokens": 0}}, "max_tokens 0 cannot be used"),
        ({"token_ids": []}, "a prompt is empty"),
        ({"token_ids": [9999]}, "9999 is not a token of the model"),
        ({"token_ids": [1] * 41}, "41 tokens"),
    ],
)
def test_what_is_not_supported_is_refused(model: Model, given: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        params(model, **given)


@pytest.mark.parametrize("given", [None, [], "x", {}, {"digest": "a"}])
def test_anything_else_is_not_a_hand_over(given: Any) -> None:
    with pytest.raises(UserError, match="hand-over is not valid"):
        message.read(given)
