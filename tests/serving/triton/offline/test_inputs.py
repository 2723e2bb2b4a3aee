"""Reads a request's tensors, without a server."""

from typing import Any

import numpy as np
import pytest

from snapexport.errors import UserError
from snapexport.runtime.requests.request import SamplingParams
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from snapexport.serving.triton.interface import (
    CODE_IN_MESSAGE,
    OUTPUT_NAMES,
    TIMEOUT,
    code_and_message,
)
from snapexport.serving.triton.tensors import Inputs, read


def values(**given: Any) -> dict[str, Any]:
    return {name: np.array([one], _dtype(one)) for name, one in given.items()}


def _dtype(values: list[Any]) -> Any:
    kinds = {str: np.object_, bytes: np.object_, float: np.float32, bool: np.bool_}
    return kinds.get(type(values[0]), np.int32)


def test_missing_inputs_have_the_runtimes_defaults() -> None:
    inputs = read(values(text_input=[b"a"]), {})
    assert inputs == Inputs("a", "text_input", SamplingParams(), *[False] * 4, timeout=0.0)
    assert read(values(input_ids=[0]), {"health": True}).is_probe


def test_every_input_tensor_reaches_the_parameters() -> None:
    given = values(
        input_ids=[3, 4],
        max_tokens=[7],
        stream=[True],
        temperature=[0.7],
        top_p=[0.9],
        top_k=[5],
        stop_words=[b"x", "ß".encode()],
        ignore_eos=[True],
        logprobs=[2],
        return_num_input_tokens=[True],
        return_num_output_tokens=[True],
        frequency_penalty=[0.5],
        presence_penalty=[-0.5],
        repetition_penalty=[1.1],
        min_p=[0.1],
        min_tokens=[3],
        structured_outputs=[b'{"regex": "[0-9]+"}'],
    ) | {"seed": np.array([[2**64 - 1]], np.uint64)}
    inputs = read(given, {TIMEOUT: 1_500_000, CODE_IN_MESSAGE: True})
    assert inputs.params == SamplingParams(
        7,
        0.7,
        0.9,
        5,
        2**64 - 1,
        ("x", "ß"),
        ignore_eos=True,
        logprobs=2,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.1,
        min_p=0.1,
        min_tokens=3,
        structured_outputs=StructuredOutputs(regex="[0-9]+"),
    )
    assert (inputs.prompt, inputs.source, inputs.timeout) == ([3, 4], "input_ids", 1.5)
    assert inputs.stream and inputs.count_input and inputs.count_output


def test_tritons_own_timeout_overrides_the_parameter() -> None:
    assert read(values(text_input=[b"a"]), {TIMEOUT: 5}, 2_000_000).timeout == 2.0


@pytest.mark.parametrize(
    ("given", "parameters", "message"),
    [
        ({}, {}, "neither text_input nor input_ids"),
        ({"text_input": [b"a"], "input_ids": [1]}, {}, "both text_input and input_ids"),
        ({"text_input": [b"a", b"b"]}, {}, "text_input has 2 values"),
        ({"text_input": [b"\xff"]}, {}, "text_input is not UTF-8"),
        ({"text_input": [b"a"], "max_tokens": [0]}, {}, "max_tokens 0"),
        ({"text_input": [b"a"], "logprobs": [21]}, {}, "logprobs 21"),
        ({"text_input": [b"a"], "stop_words": [b"x"] * 65}, {}, "stop has 65 texts"),
        ({"text_input": [b"a"], "stop_words": [b"a" * 1025]}, {}, "1025 characters"),
        ({"text_input": [b"a"], "stop_words": [b"a", b""]}, {}, "stop_words holds an empty"),
        ({"text_input": [b"a"], "stop_words": [b"\xff"]}, {}, "stop_words is not UTF-8"),
        ({"text_input": [b"a"], "temperature": [float("nan")]}, {}, "temperature nan"),
        ({"text_input": [b"a"], "top_p": [0.0]}, {}, r"top_p 0\.0"),
        ({"text_input": [b"a"], "top_k": [-1]}, {}, "top_k -1"),
        ({"text_input": [b"a"], "presence_penalty": [2.5]}, {}, "presence_penalty"),
        ({"text_input": [b"a"], "structured_outputs": [b"{"]}, {}, "structured_outputs is not"),
        ({"text_input": [b"a"], "structured_outputs": [b'{"a": 1}']}, {}, "is not a form"),
        ({"text_input": [b"a"]}, {"max_token": 3}, "'max_token'"),
        ({"text_input": [b"a"]}, {TIMEOUT: "1"}, "timeout '1'"),
        ({"text_input": [b"a"]}, {TIMEOUT: True}, "timeout True"),
    ],
)
def test_invalid_input_is_refused_by_its_name(
    given: dict[str, Any], parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(values(**given), parameters)


def test_named_output_counts_as_requested() -> None:
    given = values(text_input=[b"a"])
    named = read(given, {}, outputs=frozenset({"num_input_tokens", "output_logprobs"}))
    assert (named.count_input, named.count_output, named.params.logprobs) == (True, False, 0)
    assert read(given, {}, outputs=OUTPUT_NAMES) == read(given, {})


def test_error_is_split_into_code_and_message() -> None:
    assert code_and_message("UNAVAILABLE: later") == ("UNAVAILABLE", "later")
    assert code_and_message("Stub process is not healthy: no") == (
        "INTERNAL",
        "Stub process is not healthy: no",
    )
