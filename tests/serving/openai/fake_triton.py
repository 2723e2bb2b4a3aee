"""A fake of Triton's gRPC streams: an LLM on the fake executor behind the model's interface."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, get_args

import grpc
import numpy as np
from tritonclient.grpc.service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)
from tritonclient.utils import (
    deserialize_bytes_tensor,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from snapexport.runtime.requests.request import OutputDelta, SamplingParams
from snapexport.serving.token_text import token_texts
from snapexport.serving.triton.interface import CODE_IN_MESSAGE, Code
from tests.serving.openai.watched_llm import WatchedLLM

IDLE_SECONDS = 0.002


class FakeTriton(GRPCInferenceServiceServicer):
    """Steps the LLM in its event loop. refusal: what streams end with."""

    def __init__(self, llm: WatchedLLM) -> None:
        self.llm = llm
        self._text_of = token_texts(llm.tokenizer)
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self._boxes: dict[int, asyncio.Queue[OutputDelta]] = {}

    async def start(self) -> str:
        """Serve until `stop`; the address."""
        self._server = grpc.aio.server()
        add_GRPCInferenceServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._stepping = asyncio.create_task(self._step())
        self.address = f"127.0.0.1:{port}"
        return self.address

    async def stop(self) -> None:
        self._stepping.cancel()
        await self._server.stop(None)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[ModelInferRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ModelStreamInferResponse]:
        assert "triton_grpc_error" not in dict(context.invocation_metadata())
        async for request in requests:
            assert request.parameters[CODE_IN_MESSAGE].bool_param
            if refusal := await self._refuse(context):
                yield refusal
                continue
            async for delta in self._follow(inputs_of(request)):
                if refusal := await self._refuse(context):
                    yield refusal
                    break
                answer = response(request, delta, self._text_of)
                yield ModelStreamInferResponse(infer_response=answer)

    async def _refuse(self, context: grpc.aio.ServicerContext) -> ModelStreamInferResponse | None:
        """The model's own errors, which begin with their code, are messages; Triton's end calls."""
        if not self.refusal:
            return None
        status, text = self.refusal
        if not text.startswith(get_args(Code)):
            await context.abort(status, text)
        return ModelStreamInferResponse(error_message=text)

    async def _follow(self, inputs: dict[str, Any]) -> AsyncIterator[OutputDelta]:
        request = self.llm.read(inputs["input_ids"], params_of(inputs))
        request_id = self.llm.submit(request)
        box = self._boxes[request_id] = asyncio.Queue()
        try:
            while True:
                yield (delta := await box.get())
                if delta.finish_reason:
                    return
        finally:
            self.llm.cancel(request_id)
            del self._boxes[request_id]

    async def _step(self) -> None:
        while True:
            for delta in self.llm.step() if self.llm.busy else ():
                if box := self._boxes.get(delta.request_id):
                    box.put_nowait(delta)
            await asyncio.sleep(self.llm.seconds if self.llm.busy else IDLE_SECONDS)


def inputs_of(request: ModelInferRequest) -> dict[str, Any]:
    """Lists of the inputs' values, each of shape [1, n]."""
    values = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            flat = deserialize_bytes_tensor(raw)
        else:
            flat = np.frombuffer(raw, triton_to_np_dtype(tensor.datatype))
        assert list(tensor.shape) == [1, len(flat)]
        values[tensor.name] = flat.tolist()
    return values


def params_of(inputs: dict[str, Any]) -> SamplingParams:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos", "logprobs")
    given = {name: inputs[name][0] for name in names if name in inputs}
    given["stop_token_ids"] = inputs.get("stop_token_ids", ())
    return SamplingParams(stop=[text.decode() for text in inputs.get("stop_words", ())], **given)


def response(
    request: ModelInferRequest, delta: OutputDelta, text_of: Callable[[int], str]
) -> ModelInferResponse:
    answer = ModelInferResponse(model_name=request.model_name)

    def described(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, "text": text_of(token), "logprob": logprob}

    logprobs = [
        described(one.token_id, one.logprob) | {"top": [described(*other) for other in one.top]}
        for one in delta.logprobs
    ]
    _add(answer, "text_output", delta.text)
    _add(answer, "finish_reason", delta.finish_reason or "")
    if logprobs:
        _add(answer, "output_logprobs", json.dumps(logprobs))
    ids = np.array([delta.token_ids], np.int32)
    answer.outputs.add(name="output_ids", datatype="INT32", shape=ids.shape)
    answer.raw_output_contents.append(ids.tobytes())
    return answer


def _add(answer: ModelInferResponse, name: str, text: str) -> None:
    value = np.array([[text.encode()]], object)
    answer.outputs.add(name=name, datatype="BYTES", shape=value.shape)
    answer.raw_output_contents.append(serialize_byte_tensor(value).item())
