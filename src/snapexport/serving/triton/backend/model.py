"""The streaming model: Triton's initialize, execute and finalize, over a worker and a sender."""

import json
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue
from typing import Any

import triton_python_backend_utils as triton

from snapexport.contract.errors import UserError
from snapexport.contract.manifest import Manifest
from snapexport.runtime.llm import LLM
from snapexport.runtime.prompts import require_readable
from snapexport.runtime.requests import Request
from snapexport.serving.metrics import constant_gauges
from snapexport.serving.token_text import token_texts
from snapexport.serving.triton.backend import inputs as inputs_module
from snapexport.serving.triton.backend.inputs import Inputs
from snapexport.serving.triton.backend.publisher import Publisher
from snapexport.serving.triton.backend.sender import CODES, Events, Sender, TritonRequest
from snapexport.serving.triton.backend.settings import Settings
from snapexport.serving.triton.backend.triton_port import TritonPort, parameters_of
from snapexport.serving.warm_up import run_every_decode
from snapexport.serving.worker import CANCELLED, Worker

MOST_STEPS_AHEAD = 32
"""Most steps that the worker may be ahead of the sender; more would delay cancellations."""
READERS = 2
"""Threads that tokenize, since Triton calls `execute` one at a time and prompts may be long."""
STOP_SECONDS = 5.0


class Model:
    """The class that model.py shows to Triton as TritonPythonModel."""

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
                inputs = _inputs_of(request)
                self._readers.submit(self._accept, inputs, port, arrived)

    def finalize(self) -> None:
        """End running requests with an error, and stop the threads."""
        self._worker.stop(STOP_SECONDS)
        self._readers.shutdown()  # the worker refuses what they still read
        self._sender.stop(STOP_SECONDS)

    def load(self, settings: Settings) -> LLM:
        """Load the build."""
        return LLM(
            settings.build,
            threads=settings.threads,
            max_num_batched_tokens=settings.token_budget,
            backend=settings.backend,
        )

    def _start(self, args: Mapping[str, str]) -> None:
        _require_usable(args)
        settings = Settings.read(args)
        self._llm = self.load(settings)
        run_every_decode(self._llm)
        events: Queue[Events | None] = Queue(MOST_STEPS_AHEAD)
        log = triton.Logger.log_error
        worker = self._worker = Worker(self._llm, events.put, settings.max_pending, log)
        gauges = constant_gauges(Manifest.read(settings.build))
        labels = {"model": args["model_name"], "version": args["model_version"]}
        publisher = Publisher(labels, worker.counters, lambda: gauges | worker.values())
        self._sender = Sender(
            events,
            lambda request: worker.cancel(request, CANCELLED),
            publisher.publish,
            token_texts(self._llm.tokenizer),
            log,
        )
        self._readers = ThreadPoolExecutor(READERS, "snapexport-reader")
        worker.start()
        self._sender.start()

    def _accept(self, inputs: Inputs, port: TritonPort, arrived: float) -> None:
        with _reporting(port):
            request = TritonRequest(
                request=self._read(inputs),
                arrived=arrived,
                timeout=inputs.timeout,
                inputs=inputs,
                port=port,
                echo=str(inputs.prompt) if inputs.echo else "",
            )
            if refusal := self._worker.accept(request):
                port.fail(refusal.message, CODES[refusal.code])
            else:
                self._sender.watch(request)

    def _read(self, inputs: Inputs) -> Request:
        try:
            require_readable(inputs.prompt, self._llm.executor.limits)
            return self._llm.read(inputs.prompt, inputs.params)
        except UserError as error:
            raise UserError(f"{inputs.source}: {error.message}", error.hint) from None


def _inputs_of(request: Any) -> Inputs:
    """Copy the request's values, since Triton owns their memory."""
    values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    outputs = frozenset(request.requested_output_names())
    return inputs_module.read(values, parameters_of(request), request.timeout(), outputs)


@contextmanager
def _reporting(port: TritonPort) -> Iterator[None]:
    """Send the client an error if its request is refused."""
    try:
        yield
    except UserError as error:
        port.fail(str(error), "INVALID_ARG")
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
