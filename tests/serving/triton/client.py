"""Sends requests to the real server through each of its APIs."""

import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from snapexport.serving.triton.interface import INPUTS, UNARY_SUFFIX
from tests.serving.process import SECONDS, read_metrics
from tests.serving.triton.server import Server

IDLE = {"requests_running": 0, "requests_waiting": 0, "slots_used": 0}
_TYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}
_DTYPES = {tensor.name: tensor.dtype for tensor in INPUTS}


@dataclass(frozen=True)
class Reply:
    """One response: text, token ids, the reason on the last, and all that JSON or gRPC had."""

    text: str
    token_ids: tuple[int, ...]
    reason: str
    outputs: Mapping[str, Any]


class HttpError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Client:
    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.unary_name = name + UNARY_SUFFIX

    def generate(self, **inputs: Any) -> Reply:
        return _from_json(json.loads(self.post(f"{self.name}/generate", inputs)))

    def generate_stream(self, **inputs: Any) -> Iterator[Reply]:
        request = self._request(f"{self.name}/generate_stream", inputs | {"stream": True})
        with _http_errors(), urllib.request.urlopen(request, timeout=SECONDS) as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    event = json.loads(line.removeprefix(b"data: "))
                    if "error" in event:
                        raise HttpError(lines.status, event["error"])
                    yield _from_json(event)

    def infer(self, **inputs: Any) -> Reply:
        """The unary model by HTTP's /infer."""
        body = {"inputs": [_described(name, value) for name, value in inputs.items()]}
        answer = json.loads(self.post(f"{self.unary_name}/infer", body))
        return _from_json({one["name"]: one["data"] for one in answer["outputs"]})

    def infer_grpc(self, **inputs: Any) -> Reply:
        """The unary model by gRPC."""
        with grpc.InferenceServerClient(self.server.grpc) as client:
            return _from_grpc(client.infer(self.unary_name, tensors(inputs)))

    @contextmanager
    def stream(self, timeout_us: int | None = None, **inputs: Any) -> Iterator["Stream"]:
        """A request by gRPC. Leaving the block cancels it if it still runs."""
        stream = Stream(self.server.grpc, self.name, tensors({"stream": True} | inputs), timeout_us)
        try:
            yield stream
        finally:
            stream.cancel()

    def stream_all(self, **inputs: Any) -> list[Reply]:
        with self.stream(**inputs) as replies:
            return list(replies)

    def post(self, path: str, body: object) -> bytes:
        with (
            _http_errors(),
            urllib.request.urlopen(self._request(path, body), timeout=SECONDS) as answer,
        ):
            content: bytes = answer.read()
            return content

    def metrics(self) -> dict[str, float]:
        """The model's metrics by name; a histogram bucket also has its bound."""
        return read_metrics(self.server.metrics)

    def settled(self, **expected: float) -> dict[str, float]:
        """The metrics as soon as these have the given values."""
        end = time.monotonic() + SECONDS
        while True:
            metrics = self.metrics()
            wrong = {name: metrics.get(name) for name in expected}
            if wrong == expected:
                return metrics
            assert time.monotonic() < end, f"{wrong} and not {expected}"
            time.sleep(0.05)

    def quiet(self) -> dict[str, float]:
        """The metrics once nothing runs and nothing is left to publish: they lag a little."""
        former = self.settled(**IDLE)
        while True:
            time.sleep(0.5)
            metrics = self.settled(**IDLE)
            if metrics == former:
                return metrics
            former = metrics

    def _request(self, path: str, body: object) -> urllib.request.Request:
        url = f"{self.server.http}/v2/models/{path}"
        return urllib.request.Request(url, json.dumps(body).encode())


class Stream:
    """One request on its own gRPC stream."""

    def __init__(
        self, address: str, model: str, inputs: list[grpc.InferInput], timeout_us: int | None
    ) -> None:
        self._client = grpc.InferenceServerClient(address)
        self._results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: self._results.put((result, error)))
        self._client.async_stream_infer(model, inputs, timeout=timeout_us)

    def __iter__(self) -> Iterator[Reply]:
        reason = ""
        while not reason:
            reply = self.next()
            yield reply
            reason = reply.reason

    def next(self) -> Reply:
        result, error = self._results.get(timeout=SECONDS)
        if error:
            raise error
        return _from_grpc(result)

    def come(self) -> list[Reply]:
        """All responses that have arrived so far."""
        return [self.next() for _ in range(self._results.qsize())]

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


def tensors(inputs: Mapping[str, Any]) -> list[grpc.InferInput]:
    return [_tensor(name, value) for name, value in inputs.items()]


def _tensor(name: str, value: Any) -> grpc.InferInput:
    described = _described(name, value)
    array = np.array([described["data"]], _TYPES.get(described["datatype"], np.object_))
    tensor = grpc.InferInput(name, list(array.shape), described["datatype"])
    tensor.set_data_from_numpy(array)
    return tensor


def _described(name: str, value: Any) -> dict[str, Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    dtype = _DTYPES[name].replace("STRING", "BYTES")
    return {"name": name, "datatype": dtype, "shape": [1, len(values)], "data": values}


def _from_grpc(result: Any) -> Reply:
    names = [output.name for output in result.get_response().outputs]
    return _from_json({name: result.as_numpy(name).reshape(-1).tolist() for name in names})


def _from_json(outputs: Mapping[str, Any]) -> Reply:
    """/generate has the bare value where there is only one."""
    lists = {name: one if isinstance(one, list) else [one] for name, one in outputs.items()}
    flat = {name: [_decoded(value) for value in one] for name, one in lists.items()}
    ids = tuple(flat["output_ids"])
    return Reply(flat["text_output"][0], ids, flat["finish_reason"][0], flat)


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def _http_errors() -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        raise HttpError(error.code, error.read().decode()) from None


__all__ = ["Client", "HttpError", "InferenceServerException", "Reply", "Stream"]
