"""The model that answers once: for clients without streams, which a decoupled model refuses.

Holds no weights. It asks the streaming model, through the server, and passes its answer on.
"""

import json
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton_python_backend_utils as triton

from snapexport.triton.backend.settings import parameters, whole
from snapexport.triton.backend.triton_port import FINAL, send_error
from snapexport.triton.interface import CODE_IN_MESSAGE, code_and_message


class UnaryModel:
    """What the second model.py shows to Triton as TritonPythonModel."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Take note of whom to ask. It may not be loaded yet."""
        given = parameters(args)
        if set(given) != {"model", "max_requests"}:
            raise triton.TritonModelException("config.pbtxt: model and max_requests are needed")
        self._model = given["model"]
        self._room = whole(given, "max_requests") or 1
        self._threads = ThreadPoolExecutor(self._room)
        self._running = 0
        self._lock = threading.Lock()

    def execute(self, requests: Sequence[Any]) -> None:
        """Ask for each in a thread of its own: asking blocks until the answer is there."""
        for request in requests:
            sender = request.get_response_sender()
            if _streams(request):
                message = f"stream must be false here: ask {self._model} for a stream"
                send_error(sender, "INVALID_ARG", message)
            elif self._enter():
                self._threads.submit(self._answer, self._question(request), sender)
            else:
                message = f"{self._room} requests run and wait already: try again later"
                send_error(sender, "UNAVAILABLE", message)

    def finalize(self) -> None:
        """Nothing of its own is left running: Triton waits for answers before it unloads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _question(self, request: Any) -> Any:
        return triton.InferenceRequest(
            model_name=self._model,
            requested_output_names=list(request.requested_output_names()),
            inputs=request.inputs(),
            timeout=request.timeout(),
            parameters=json.loads(request.parameters() or "{}") | {CODE_IN_MESSAGE: True},
        )

    def _answer(self, question: Any, sender: Any) -> None:
        try:
            _pass_on(question, sender)
        except Exception as error:
            triton.Logger.log_error(traceback.format_exc())
            send_error(sender, "INTERNAL", str(error))
        finally:
            with self._lock:
                self._running -= 1

    def _enter(self) -> bool:
        with self._lock:
            has_room = self._running < self._room
            self._running += has_room
            return has_room


def _streams(request: Any) -> bool:
    """Whether it asks for more than one answer."""
    stream = triton.get_input_tensor_by_name(request, "stream")
    return stream is not None and bool(stream.as_numpy().any())


def _pass_on(question: Any, sender: Any) -> None:
    for response in question.exec(decoupled=True):
        if response.has_error():
            send_error(sender, *code_and_message(response.error().message()))
            return
        if response.output_tensors():
            sender.send(triton.InferenceResponse(response.output_tensors()), flags=FINAL)
            return
