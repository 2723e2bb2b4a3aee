"""A malformed request is refused by the name of its input, and others are served."""

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from tests.serving.triton.client import Client, HttpError, tensors
from tests.serving.triton.conftest import MAX_PENDING

PROMPT = {"text_input": "The vault", "max_tokens": 2}
SLOTS = 8


def raw(name: str, array: "np.ndarray[Any, Any]", dtype: str) -> grpc.InferInput:
    tensor = grpc.InferInput(name, list(array.shape), dtype)
    tensor.set_data_from_numpy(array)
    return tensor


def bytes_of(*values: bytes) -> "np.ndarray[Any, Any]":
    return np.array([values], np.object_)


MALFORMED = {
    "no prompt": (tensors({"max_tokens": 2}), "neither text_input nor input_ids"),
    "two prompts": (tensors(PROMPT | {"input_ids": [1]}), "both text_input and input_ids"),
    "empty text": (tensors(PROMPT | {"text_input": ""}), "text_input: a prompt is empty"),
    "no ids": (
        [raw("input_ids", np.zeros((1, 0), np.int32), "INT32")],
        "input_ids: a prompt is empty",
    ),
    "unknown ids": (tensors({"input_ids": [1, 2002]}), "input_ids: 2002 is not a token"),
    "too long": (tensors({"input_ids": [1] * 2065}), "input_ids: a prompt has 2,065 tokens"),
    "far too long": (
        tensors(PROMPT | {"text_input": "a " * 5_000_000}),
        "text_input: a prompt has 10000000 bytes",
    ),
    "not UTF-8": (
        [raw("text_input", bytes_of(b"ab\xff"), "BYTES")],
        "text_input is not UTF-8: invalid start byte at byte 2",
    ),
    "max_tokens 0": (tensors(PROMPT | {"max_tokens": 0}), "max_tokens 0 cannot"),
    "echo of ids": (
        tensors({"input_ids": [5], "exclude_input_in_output": False}),
        "exclude_input_in_output false needs",
    ),
    # Triton's own refusals.
    "wrong type": ([raw("text_input", np.array([[1]], np.int32), "INT32")], "text_input"),
    "wrong type of a number": (
        [*tensors(PROMPT)[:1], raw("max_tokens", np.array([[2.0]], np.float32), "FP32")],
        "max_tokens",
    ),
    "wrong shape": (
        [*tensors(PROMPT)[:1], raw("max_tokens", np.array([[2, 3]], np.int32), "INT32")],
        "max_tokens",
    ),
    "no batch dimension": ([raw("text_input", bytes_of(b"a")[0], "BYTES")], "text_input"),
    "a batch of two": ([raw("text_input", bytes_of(b"a", b"b").T, "BYTES")], "batch"),
    "unknown input": ([raw("text", bytes_of(b"a"), "BYTES")], "text"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_request_is_refused_by_its_input(client: Client, case: str) -> None:
    inputs, message = MALFORMED[case]
    with grpc.InferenceServerClient(client.server.grpc) as raw_client:
        with pytest.raises(InferenceServerException, match="(?i)" + message) as refused:
            raw_client.infer(client.unary_name, inputs)
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        errors: list[Any] = []
        raw_client.start_stream(lambda result, error: errors.append(error))
        raw_client.async_stream_infer(client.name, inputs)
        raw_client.stop_stream()
    assert len(errors) == 1 and message.lower() in str(errors[0]).lower()
    assert client.generate(**PROMPT).reason == "length"


@pytest.mark.parametrize(
    ("inputs", "status", "message"),
    [
        ({"max_tokens": 2}, 400, "neither text_input nor input_ids"),
        (PROMPT | {"max_token": 3}, 400, "'max_token' is neither an input"),
        (PROMPT | {"timeout": -1}, 400, "timeout -1"),
        (PROMPT | {"timeout": "soon"}, 400, "timeout 'soon'"),
        (PROMPT | {"best_of": [2]}, 400, "best_of"),
        (PROMPT | {"max_tokens": 0}, 400, "max_tokens 0 cannot"),
    ],
)
def test_generate_refuses_malformed_json_with_status_400(
    client: Client, inputs: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(HttpError, match=message) as refused:
        client.generate(**inputs)
    assert refused.value.status == status
    with pytest.raises(HttpError, match=message):
        list(client.generate_stream(**inputs))


def test_unary_model_refuses_to_stream(client: Client) -> None:
    with pytest.raises(HttpError, match="stream must be false here") as refused:
        client.infer(**PROMPT, stream=True)
    assert refused.value.status == 400


def test_refusals_take_no_place_in_the_unary_models_queue(client: Client) -> None:
    """A parameter of a kind that cannot be passed on, more often than there are places."""
    body = {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["The vault"]}
        ],
        "parameters": {"speed": 1.5},
    }
    for _ in range(MAX_PENDING + SLOTS + 1):
        with pytest.raises(HttpError) as refused:
            client.post(f"{client.unary_name}/infer", body)
        assert refused.value.status == 400
    assert client.infer(**PROMPT).reason == "length"


def test_error_code_is_in_the_message_only_on_request(client: Client) -> None:
    for path in (client.name, client.unary_name):
        for with_code, begins in ((True, True), (False, False)):
            inputs = {"max_tokens": 2, "error_code_in_message": with_code}
            with pytest.raises(HttpError) as refused:
                client.post(f"{path}/generate", inputs)
            assert ("INVALID_ARG: neither" in refused.value.message) == begins


def test_refusals_take_no_batch_slot_and_change_no_metric(client: Client) -> None:
    before = client.quiet()
    with pytest.raises(HttpError):
        client.generate(max_tokens=2)
    assert client.quiet() == before
