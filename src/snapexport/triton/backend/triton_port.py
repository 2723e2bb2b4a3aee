"""The way back to a client through Triton's response sender."""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as triton
from numpy.typing import NDArray

from snapexport.triton.interface import CODE_IN_MESSAGE, Code

FINAL = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPort:
    """A `job.Port` over the API of the Python backend."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._tells_code = CODE_IN_MESSAGE in request.parameters()

    def send(self, tensors: Mapping[str, NDArray[Any]], is_last: bool) -> None:
        """One response."""
        outputs = [triton.Tensor(name, array) for name, array in tensors.items()]
        self._sender.send(triton.InferenceResponse(outputs), flags=FINAL if is_last else 0)

    def fail(self, message: str, code: Code) -> None:
        """The last response: an error."""
        text = f"{code}: {message}" if self._tells_code else message
        send_error(self._sender, code, text)

    def is_cancelled(self) -> bool:
        """Whether the client has gone, or taken its request back."""
        return bool(self._sender.is_cancelled())


def send_error(sender: Any, code: Code, message: str) -> None:
    """An error as the last response."""
    error = triton.TritonError(message, getattr(triton.TritonError, code))
    sender.send(triton.InferenceResponse(error=error), flags=FINAL)
