"""Triton as a generator: one gRPC stream for each answer. Leaving it early cancels at once."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferInput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import np_to_triton_dtype

from snapexport.runtime.requests import Request, SamplingParams
from snapexport.serving.openai.errors import UNAVAILABLE, ApiError, leaving
from snapexport.serving.openai.pieces import Chosen, Likelihood, Piece
from snapexport.serving.triton.interface import CODE_IN_MESSAGE, code_and_message

ERRORS_AS_STATUS = {"triton_grpc_error": "true"}
"""Without this header Triton's streams tell errors as texts alone, without their kind."""

STATUS = {
    "INVALID_ARG": (400, "invalid_request_error", None),
    "UNAVAILABLE": (503, "server_error", UNAVAILABLE),
    "CANCELLED": (503, "server_error", "cancelled"),
    # Not the model's own, but Triton's or the way to it:
    grpc.StatusCode.INVALID_ARGUMENT: (400, "invalid_request_error", None),
    grpc.StatusCode.UNAVAILABLE: (503, "server_error", "unreachable"),
    grpc.StatusCode.CANCELLED: (503, "server_error", "cancelled"),
}
"""By the code that the model's message begins with; where it has none, by the call's own."""


class TritonGenerator:
    """Continues prompts by a model on a Triton server. Made and used within one event loop."""

    def __init__(self, address: str, model: str, seconds: float) -> None:
        """address: of gRPC, host:port. seconds: after which an answer is given up."""
        self._client = InferenceServerClient(address)
        self._model = model
        self._seconds = seconds

    async def stream(self, request: Request) -> AsyncGenerator[Piece]:
        """The pieces of one answer. Raises ApiError."""
        asked = {
            "model_name": self._model,
            "inputs": inputs_of(request),
            "parameters": {CODE_IN_MESSAGE: True},
        }
        responses = self._client.stream_infer(
            _once(asked),
            stream_timeout=self._seconds,
            headers=ERRORS_AS_STATUS,
        )
        try:
            async for result, error in responses:
                if error is not None:
                    raise ApiError(500, error.message())
                yield (piece := piece_of(result))
                if piece.finish_reason:
                    return
            raise ApiError(500, "the model's answer broke off")
        except grpc.aio.AioRpcError as error:
            raise self._told(error) from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise leaving() from None  # `close` has cancelled the call, and nobody this task
        finally:
            responses.cancel()

    def _told(self, error: grpc.aio.AioRpcError) -> ApiError:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"the answer took longer than {self._seconds:g} s"
            return ApiError(504, message, code="timeout")
        details = error.details() or str(error.code())
        own, message = code_and_message(details)
        which = error.code() if message == details else own
        status, kind, code = STATUS.get(which, (500, "server_error", None))
        return ApiError(status, message, kind, code=code)

    async def close(self) -> None:
        """Leave the server; what is still running is cancelled, and its streams raise."""
        await self._client.close()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _once(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request


def inputs_of(request: Request) -> list[InferInput]:
    """The model's inputs, each with a batch dimension of 1."""
    assert request.params is not None
    values = {"input_ids": np.array(request.prompt_token_ids, np.int32), **_options(request.params)}
    return [_input(name, value.reshape(1, -1)) for name, value in values.items()]


def _options(params: SamplingParams) -> dict[str, np.ndarray[Any, Any]]:
    values: dict[str, Any] = {
        "stream": np.bool_(True),
        "max_tokens": np.int32(params.max_tokens),
        "temperature": np.float32(params.temperature),
        "top_p": np.float32(params.top_p),
        "top_k": np.int32(params.top_k),
        "ignore_eos": np.bool_(params.ignore_eos),
    }
    if params.seed is not None:
        values["seed"] = np.uint64(params.seed)
    if params.stop:
        # As objects: numpy's own bytes end before a zero.
        values["stop_words"] = np.array([text.encode() for text in params.stop], np.object_)
    if params.logprobs is not None:
        values["logprobs"] = np.int32(params.logprobs)
    return {name: np.atleast_1d(value) for name, value in values.items()}


def _input(name: str, value: np.ndarray[Any, Any]) -> InferInput:
    tensor = InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
    tensor.set_data_from_numpy(value)
    return tensor


def piece_of(result: InferResult) -> Piece:
    """What the model's outputs say. Raises ApiError where the answer has no proper end."""
    reason = _text(result, "finish_reason")
    if reason not in ("", "stop", "length"):
        raise ApiError(500, f"the model's answer ended with '{reason}'")
    return Piece(
        text=_text(result, "text_output"),
        tokens=int(result.as_numpy("output_ids").size),
        finish_reason=reason or None,
        logprobs=_logprobs(_text(result, "output_logprobs")),
    )


def _text(result: InferResult, name: str) -> str:
    """A text output; empty where the model sent none."""
    value = result.as_numpy(name)
    return "" if value is None else value.reshape(-1)[0].decode()


def _logprobs(told: str) -> tuple[Chosen, ...]:
    return tuple(
        Chosen(
            token["text"],
            token["logprob"],
            tuple(Likelihood(other["text"], other["logprob"]) for other in token["top"]),
        )
        for token in json.loads(told or "[]")
    )
