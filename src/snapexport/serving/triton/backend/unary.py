"""The unary model: one answer for each request, for clients without streams.

Triton's decoupled (streaming) models refuse such clients. This model holds no weights; it forwards
requests to the streaming model through the server.
"""

import json
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton_python_backend_utils as triton

from snapexport.errors import UserError
from snapexport.serving.triton.backend.settings import UnaryParameters, read_parameters
from snapexport.serving.triton.backend.triton_port import TritonPort, parameters_of
from snapexport.serving.triton.interface import (
    CODE_IN_MESSAGE,
    Code,
    code_and_message,
)

Refusal = tuple[Code, str]


class UnaryModel:
    """The class that the second model.py shows to Triton as TritonPythonModel."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the streaming model's name. It may not be loaded yet."""
        try:
            given = read_parameters(UnaryParameters, json.loads(args["model_config"]))
        except UserError as error:
            raise triton.TritonModelException(str(error)) from None
        self._model, self._room = given.model, given.max_requests
        self._threads = ThreadPoolExecutor(self._room)
        self._places = threading.Semaphore(self._room)

    def execute(self, requests: Sequence[Any]) -> None:
        """Forward each request in a thread of its own, which waits for the answer."""
        for request in requests:
            port = TritonPort(request)
            if refusal := self._take(request, port):
                code, message = refusal
                port.fail(message, code)

    def finalize(self) -> None:
        """Do nothing: Triton waits for all answers before it unloads a model."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _take(self, request: Any, port: TritonPort) -> Refusal | None:
        """Begin to answer, or return the refusal. Takes a place last."""
        if _streams(request):
            return "INVALID_ARG", f"stream must be false here: {self._model} streams"
        try:
            forwarded = self._forward(request)
        except Exception as error:  # such as a parameter of a kind that cannot be passed on
            return "INVALID_ARG", f"the request cannot be passed on: {error}"
        if not self._places.acquire(blocking=False):
            return "UNAVAILABLE", f"{self._room} requests run and wait already: try again later"
        self._threads.submit(self._answer, forwarded, port)
        return None

    def _forward(self, request: Any) -> Any:
        return triton.InferenceRequest(
            model_name=self._model,
            requested_output_names=list(request.requested_output_names()),
            inputs=request.inputs(),
            timeout=request.timeout(),
            parameters=parameters_of(request) | {CODE_IN_MESSAGE: True},
        )

    def _answer(self, forwarded: Any, port: TritonPort) -> None:
        try:
            _pass_on(forwarded, port)
        except Exception as error:
            triton.Logger.log_error(traceback.format_exc())
            port.fail(str(error), "INTERNAL")
        finally:
            self._places.release()


def _streams(request: Any) -> bool:
    """Whether the request has stream true."""
    stream = triton.get_input_tensor_by_name(request, "stream")
    return stream is not None and bool(stream.as_numpy().any())


def _pass_on(forwarded: Any, port: TritonPort) -> None:
    """Forward the only answer. An empty response marks the end of the stream."""
    for response in forwarded.exec(decoupled=True):
        if response.has_error():
            code, message = code_and_message(response.error().message())
            port.fail(message, code)
            return
        if response.output_tensors():
            port.pass_on(response.output_tensors(), is_last=True)
            return
    port.fail("the model's answer broke off", "INTERNAL")
