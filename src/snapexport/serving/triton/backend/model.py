"""The streaming model: Triton's three verbs over a worker and a sender."""

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
from snapexport.runtime.memory import cache_bytes
from snapexport.runtime.prompts import require_readable
from snapexport.runtime.requests import Request
from snapexport.serving.triton.backend import question as questions
from snapexport.serving.triton.backend.job import Job
from snapexport.serving.triton.backend.metrics import Metrics
from snapexport.serving.triton.backend.outputs import texts_of
from snapexport.serving.triton.backend.question import Question
from snapexport.serving.triton.backend.sender import Sender
from snapexport.serving.triton.backend.settings import Settings
from snapexport.serving.triton.backend.tally import Tally
from snapexport.serving.triton.backend.triton_port import TritonPort, parameters_of
from snapexport.serving.triton.backend.warmup import run_every_decode
from snapexport.serving.triton.backend.worker import CANCELLED, Said, Worker

QUEUE = 32
"""Steps that the worker may be ahead of the sender: more would make cancellations late."""
READERS = 2
"""Threads that tokenize: a long prompt takes its time, and Triton calls `execute` in turn."""
STOP_SECONDS = 5.0


class Model:
    """What model.py shows to Triton as TritonPythonModel."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the build and start the threads."""
        try:
            self._start(args)
        except UserError as error:
            raise triton.TritonModelException(str(error)) from None

    def execute(self, requests: Sequence[Any]) -> None:
        """Take the requests in, or answer with an error; whatever follows comes later."""
        arrived = time.monotonic()
        for request in requests:
            port = TritonPort(request)
            with _telling(port):
                self._take(request, port, arrived)

    def finalize(self) -> None:
        """End what still runs, tell its clients, and leave."""
        self._worker.stop(STOP_SECONDS)
        self._readers.shutdown()  # what it still reads, the worker refuses
        self._sender.stop(STOP_SECONDS)

    def load(self, settings: Settings) -> LLM:
        """The build, running."""
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
        run_every_decode(self._llm.executor)
        self._tally = Tally()
        said: Queue[Said | None] = Queue(QUEUE)
        log = triton.Logger.log_error
        self._worker = Worker(self._llm, said, self._tally, settings.max_pending, log)
        self._gauges = _constant_gauges(self._llm, Manifest.read(settings.build))
        self._metrics = _metrics(args)
        self._sender = Sender(
            said,
            lambda job: self._worker.cancel(job, CANCELLED),
            self._publish,
            texts_of(self._llm.tokenizer),
            log,
        )
        self._readers = ThreadPoolExecutor(READERS, "snapexport-reader")
        self._worker.start()
        self._sender.start()

    def _take(self, request: Any, port: TritonPort, arrived: float) -> None:
        """Copy the request's values, whose memory is Triton's; the rest is for the readers."""
        values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        question = questions.read(values, parameters_of(request), request.timeout())
        wanted = frozenset(request.requested_output_names())
        question = questions.with_named(question, wanted)
        self._readers.submit(self._accept, question, port, wanted, arrived)

    def _accept(
        self, question: Question, port: TritonPort, wanted: frozenset[str], arrived: float
    ) -> None:
        with _telling(port):
            deadline = arrived + question.timeout if question.timeout else None
            job = Job(question, self._read(question), port, wanted, arrived, deadline)
            if refusal := self._worker.accept(job):
                port.fail(refusal.message, refusal.code)
            else:
                self._sender.watch(job)

    def _read(self, question: Question) -> Request:
        try:
            require_readable(question.prompt, self._llm.executor.limits)
            return self._llm.read(question.prompt, question.params)
        except UserError as error:
            raise UserError(f"{question.source}: {error.message}", error.hint) from None

    def _publish(self) -> None:
        """Of all that was counted, what is due."""
        if self._metrics is None:
            self._tally.seconds.clear()
            return
        while self._tally.seconds:
            self._metrics.observe(*self._tally.seconds.popleft())
        if self._metrics.is_due:
            self._metrics.tell(self._values())

    def _values(self) -> dict[str, float]:
        load, tally = self._worker.load(), self._tally
        return {
            **self._gauges,
            "requests_running": load.running,
            "requests_waiting": load.waiting,
            "slots_used": load.slots_used,
            "prompt_tokens_total": tally.prompt_tokens,
            "generated_tokens_total": tally.generated_tokens,
            "requests_finished_total": tally.finished,
            "requests_cancelled_total": tally.cancelled,
            "requests_failed_total": tally.failed,
            "requests_refused_total": tally.refused,
        }


@contextmanager
def _telling(port: TritonPort) -> Iterator[None]:
    """Tell the client why its request cannot be taken."""
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


def _constant_gauges(llm: LLM, manifest: Manifest) -> dict[str, float]:
    cache = cache_bytes(manifest)
    return {
        "slots": llm.executor.limits.batch,
        "cache_bytes": cache.decode,
        "full_cache_bytes": cache.full,
    }


def _metrics(args: Mapping[str, str]) -> Metrics | None:
    try:
        return Metrics({"model": args["model_name"], "version": args["model_version"]})
    except triton.TritonModelException as error:
        triton.Logger.log_warn(f"no metrics of the model: {error}")
        return None
