"""Triton as a `Generator`: one gRPC stream for each request. Closing it early cancels at once.

Triton 24.10 was seen to end a gRPC call twice, which aborts the whole server, where a cancellation
meets the call's end. So a stream that has given its last output is read to its end and not
cancelled. Errors come as messages: Triton's mode that turns them into the call's status
(`triton_grpc_error`) ends the call from another place, and uses freed memory before 26.04.
"""

import asyncio
import json
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from time import monotonic
from typing import Any, cast

import grpc
import numpy as np
from tritonclient.grpc import InferInput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from snapexport.runtime.requests.request import FinishReason, OutputDelta, Request, TokenLogprobs
from snapexport.serving.generator import Failure, FailureCode, GenerationError
from snapexport.serving.triton.interface import (
    CODE_IN_MESSAGE,
    INPUTS,
    Tensor,
    code_and_message,
)
from snapexport.serving.worker import STOPPING

CHANNEL = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that was started again is found at once: gRPC itself waits for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
ENDING_SECONDS = 5.0
"""Seconds for Triton to end a stream after its last output."""

CODES: Mapping[Any, FailureCode] = {
    "INVALID_ARG": "invalid",
    "UNAVAILABLE": "full",
    "CANCELLED": "cancelled",
    "INTERNAL": "internal",
    # Not the model's own, but Triton's or gRPC's:
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.CANCELLED: "cancelled",
}
"""Failure by error code: the code at the start of the model's message, else gRPC's."""


class TritonGenerator:
    """Continues prompts by a model on a Triton server. Made and used in one event loop."""

    def __init__(self, address: str, model: str, seconds: float, metrics: str = "") -> None:
        """address: of gRPC, host:port. seconds: a request's timeout. metrics: the server's URL."""
        self.last_output = float("-inf")
        self.request_seconds = seconds
        self._client = InferenceServerClient(address, channel_args=CHANNEL)
        self._ending: set[asyncio.Task[None]] = set()
        self._model = model
        self._metrics = metrics

    async def stream(self, request: Request) -> AsyncGenerator[OutputDelta]:
        sent = {
            "model_name": self._model,
            "inputs": inputs_of(request),
            "parameters": {CODE_IN_MESSAGE: True},
        }
        responses = self._client.stream_infer(_once(sent), stream_timeout=self.request_seconds)
        is_over = False
        try:
            async for result, error in responses:
                if error is not None:
                    is_over = True
                    raise _failure(error.message())
                self.last_output = monotonic()
                output = output_of(result)
                is_over = output.finish_reason is not None
                yield output
                if is_over:
                    return
            raise _internal("the model's answer broke off")
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            raise GenerationError(STOPPING) from None  # `close` has cancelled the call
        finally:
            if is_over:
                self._end_later(responses)
            else:
                responses.cancel()

    def _end_later(self, responses: Any) -> None:
        """Read a stream to its end, for which nobody waits."""
        task = asyncio.create_task(_end(responses))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def metrics(self) -> bytes:
        """Triton's metrics, with the model's among them."""
        try:
            return await asyncio.to_thread(_fetch, self._metrics)
        except OSError as error:
            message = f"Triton's metrics cannot be read: {error}"
            raise GenerationError(Failure(message, "unreachable")) from None

    async def close(self) -> None:
        """Close the connection, which cancels running requests."""
        await self._client.close()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _translated(self, error: grpc.aio.AioRpcError) -> GenerationError:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"the answer took longer than {self.request_seconds:g} s"
            return GenerationError(Failure(message, "deadline"))
        details = error.details() or str(error.code())
        own, message = code_and_message(details)
        code = error.code() if message == details else own
        return GenerationError(Failure(message, CODES.get(code, "internal")))


async def _end(responses: Any) -> None:
    with suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(ENDING_SECONDS):
            async for _ in responses:
                pass
        return
    responses.cancel()


def _failure(text: str) -> GenerationError:
    """The error of a message from the model, which begins with its code, or from Triton."""
    code, message = code_and_message(text)
    return GenerationError(Failure(message, CODES.get(code, "internal")))


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        content: bytes = answer.read()
        return content


def _internal(message: str) -> GenerationError:
    return GenerationError(Failure(message, "internal"))


async def _once(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request


def inputs_of(request: Request) -> list[InferInput]:
    """The model's inputs, each with a batch dimension of 1."""
    assert request.params is not None
    params = asdict(request.params)
    stops = [text.encode() for text in params.pop("stop")]
    lists = {"stop_words": stops, "stop_token_ids": params.pop("stop_token_ids")}
    values = params | {"input_ids": request.prompt_token_ids, "stream": True}
    values |= {name: given for name, given in lists.items() if given}
    return [_input(one, values[one.name]) for one in INPUTS if values.get(one.name) is not None]


def _input(tensor: Tensor, value: Any) -> InferInput:
    # Texts as objects: NumPy's own bytes end before a zero.
    dtype = np.object_ if tensor.dtype == "STRING" else triton_to_np_dtype(tensor.dtype)
    array = np.array(value, dtype).reshape(1, -1)
    sent = InferInput(tensor.name, list(array.shape), np_to_triton_dtype(array.dtype))
    sent.set_data_from_numpy(array)
    return sent


def output_of(result: InferResult) -> OutputDelta:
    """The model's output tensors as a delta. Raises GenerationError for another finish_reason."""
    reason = _text(result, "finish_reason")
    if reason not in ("", "stop", "length"):
        raise _internal(f"the model's answer ended with '{reason}'")
    logprobs = tuple(
        TokenLogprobs(
            one["id"], one["logprob"], tuple((top["id"], top["logprob"]) for top in one["top"])
        )
        for one in json.loads(_text(result, "output_logprobs") or "[]")
    )
    return OutputDelta(
        0,
        _text(result, "text_output"),
        tuple(result.as_numpy("output_ids").reshape(-1).tolist()),
        cast(FinishReason, reason) if reason else None,
        logprobs=logprobs,
    )


def _text(result: InferResult, name: str) -> str:
    """A text output; empty where the model sent none."""
    value = result.as_numpy(name)
    return "" if value is None else str(value.reshape(-1)[0].decode())
