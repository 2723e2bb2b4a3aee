"""The two models of a repository: Triton's initialize, execute and finalize."""

import asyncio
import json
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton_python_backend_utils as triton

from snapexport.errors import UserError
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.serving.health import Health, UnhealthyError
from snapexport.serving.metrics import Observe
from snapexport.serving.model import Model, run_every_decode
from snapexport.serving.options import ModelOptions
from snapexport.serving.streams import Stream
from snapexport.serving.triton import tensors
from snapexport.serving.triton.interface import (
    CODE_IN_MESSAGE,
    code_and_message,
)
from snapexport.serving.triton.port import (
    EVERY_SECONDS,
    Publisher,
    TritonPort,
    parameters_of,
)
from snapexport.serving.triton.sender import Sender
from snapexport.serving.triton.settings import (
    UnaryParameters,
    backend_of,
    read_options,
    read_parameters,
)
from snapexport.serving.triton.tensors import Inputs
from snapexport.serving.worker import full

READERS = 2
"""Threads that tokenize, since Triton calls `execute` one at a time and prompts may be long."""
STOP_SECONDS = 5.0
ALIVE = OutputDelta(0, "", (), "stop")


class StreamingModel:
    """The class that the model.py with the weights shows to Triton as TritonPythonModel."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the build and start the threads."""
        try:
            self._start(args)
        except UserError as error:
            raise triton.TritonModelException(str(error)) from None

    def execute(self, requests: Sequence[Any]) -> None:
        """Accept or refuse the requests; answers come later."""
        arrived = time.monotonic()
        for request in requests:
            port = TritonPort(request)
            with _reporting(port):
                answer = self._answer(_inputs_of(request), port, arrived)
                asyncio.run_coroutine_threadsafe(answer, self._loop)

    def finalize(self) -> None:
        """End running requests with an error, and stop the threads."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)

    def load(self, options: ModelOptions, observe: Observe, backend: BackendName) -> Model:
        """Load the build."""
        log = triton.Logger.log_error
        return Model.load(options, log, observe=observe, backend=backend)

    def _start(self, args: Mapping[str, str]) -> None:
        _require_usable(args)
        publisher = Publisher({"model": args["model_name"], "version": args["model_version"]})
        self._model = self.load(read_options(args), publisher.observe, backend_of(args))
        run_every_decode(self._model.llm)
        self._sender = Sender(self._model.streams, self._model.text_of)
        self._readers = ThreadPoolExecutor(READERS, "snapexport-reader")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="snapexport-sender", daemon=True
        )
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(publisher), self._loop).result()

    async def _begin(self, publisher: Publisher) -> None:
        self._model.streams.start()
        self._health = Health(self._model.streams)
        self._publishing = asyncio.create_task(self._publish(publisher))

    async def _publish(self, publisher: Publisher) -> None:
        while True:
            try:
                publisher.publish(self._model.values())
            except Exception:
                triton.Logger.log_error(traceback.format_exc())
            await asyncio.sleep(EVERY_SECONDS)

    async def _end(self) -> None:
        """Wait for the last responses. The worker refuses requests that are still read."""
        await self._model.streams.close()
        self._publishing.cancel()
        answers = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(answers, timeout=STOP_SECONDS)

    async def _answer(self, inputs: Inputs, port: TritonPort, arrived: float) -> None:
        with _reporting(port):
            if inputs.is_probe:
                await self._health.check()
                port.send(tensors.tensors(inputs, 0, ALIVE, "", self._model.text_of), is_last=True)
                return
            request = await self._loop.run_in_executor(self._readers, self._read, inputs)
            stream = Stream(request=request, arrived=arrived, timeout=inputs.timeout)
            await self._sender.answer(stream, inputs, port)

    def _read(self, inputs: Inputs) -> Request:
        try:
            return self._model.read(inputs.prompt, inputs.params)
        except UserError as error:
            raise UserError(f"{inputs.source}: {error.message}", error.hint) from None


def _inputs_of(request: Any) -> Inputs:
    """Copy the request's values, since Triton owns their memory."""
    values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    outputs = frozenset(request.requested_output_names())
    return tensors.read(values, parameters_of(request), request.timeout(), outputs)


@contextmanager
def _reporting(port: TritonPort) -> Iterator[None]:
    """Send the client an error if its request is refused."""
    try:
        yield
    except UserError as error:
        port.fail(str(error), "INVALID_ARG")
    except UnhealthyError as error:
        port.fail(str(error), "UNAVAILABLE")
    except Exception as error:
        triton.Logger.log_error(traceback.format_exc())
        port.fail(f"{type(error).__name__}: {error}", "INTERNAL")


def _require_usable(args: Mapping[str, str]) -> None:
    if not triton.using_decoupled_model_transaction_policy(json.loads(args["model_config"])):
        raise UserError(
            "the model is not decoupled", "add model_transaction_policy { decoupled: true }"
        )
    if args["model_instance_kind"] == "GPU" and args["model_instance_device_id"] != "0":
        raise UserError(
            f"the model runs on GPU 0, not {args['model_instance_device_id']}",
            "write gpus: [ 0 ], and choose the GPU by the server's CUDA_VISIBLE_DEVICES",
        )


class UnaryModel:
    """One answer for each request, for clients without streams, which the other model refuses.

    Holds no weights: it forwards requests to the streaming model through the server.
    """

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
            self._begin(request, TritonPort(request))

    def finalize(self) -> None:
        """Do nothing: Triton waits for all answers before it unloads a model."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, request: Any, port: TritonPort) -> None:
        """Begin to answer, or refuse."""
        if _streams(request):
            port.fail(f"stream must be false here: {self._model} streams", "INVALID_ARG")
            return
        try:
            forwarded = self._forward(request)
        except Exception as error:  # such as a parameter of a kind that cannot be passed on
            port.fail(f"the request cannot be passed on: {error}", "INVALID_ARG")
            return
        if self._places.acquire(blocking=False):
            self._threads.submit(self._answer, forwarded, port)
        else:
            port.fail(full(self._room).message, "UNAVAILABLE")

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
