"""Sends responses to a client through Triton's response sender."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as triton
from numpy.typing import NDArray

from snapexport.serving.triton.interface import CODE_IN_MESSAGE, Code

FINAL = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPort:
    """A `sender.Port` over the API of the Python backend."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._sends_code = parameters_of(request).get(CODE_IN_MESSAGE) is True

    def send(self, tensors: Mapping[str, NDArray[Any]], is_last: bool) -> None:
        self.pass_on([triton.Tensor(name, array) for name, array in tensors.items()], is_last)

    def pass_on(self, outputs: Sequence[Any], is_last: bool) -> None:
        """Send one response of Triton's own tensors."""
        self._sender.send(triton.InferenceResponse(outputs), flags=FINAL if is_last else 0)

    def fail(self, message: str, code: Code) -> None:
        text = f"{code}: {message}" if self._sends_code else message
        error = triton.TritonError(text, getattr(triton.TritonError, code))
        self._sender.send(triton.InferenceResponse(error=error), flags=FINAL)

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def parameters_of(request: Any) -> dict[str, Any]:
    """A request's own parameters."""
    given: dict[str, Any] = json.loads(request.parameters() or "{}")
    return given
