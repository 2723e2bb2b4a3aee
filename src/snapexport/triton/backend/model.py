"""The streaming model: Triton's three verbs over a worker and a sender."""

import json
import time
import traceback
from collections.abc import Mapping, Sequence
from queue import Queue
from typing import Any

import triton_python_backend_utils as triton

from snapexport.contract.errors import UserError
from snapexport.contract.manifest import Manifest
from snapexport.runtime.llm import LLM
from snapexport.runtime.memory import cache_bytes
from snapexport.triton.backend import question as questions
from snapexport.triton.backend.job import Failure, Job
from snapexport.triton.backend.metrics import Metrics
from snapexport.triton.backend.outputs import texts_of
from snapexport.triton.backend.sender import Sender
from snapexport.triton.backend.settings import Settings
from snapexport.triton.backend.tally import Tally
from snapexport.triton.backend.triton_port import TritonPort
from snapexport.triton.backend.worker import CANCELLED, Said, Worker

QUEUE = 32
"""Steps that the worker may be ahead of the sender: more would make cancellations late."""
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
        for request in requests:
            port = TritonPort(request)
            try:
                failure = self._take(request, port)
            except UserError as error:
                failure = Failure(str(error), "INVALID_ARG")
            except Exception as error:
                triton.Logger.log_error(traceback.format_exc())
                failure = Failure(f"{type(error).__name__}: {error}", "INTERNAL")
            if failure:
                port.fail(failure.message, failure.code)

    def finalize(self) -> None:
        """End what still runs, tell its clients, and leave."""
        self._worker.stop(STOP_SECONDS)
        self._sender.stop(STOP_SECONDS)

    def load(self, settings: Settings) -> LLM:
        """The build, running."""
        return LLM(settings.build, threads=settings.threads, token_budget=settings.token_budget)

    def _start(self, args: Mapping[str, str]) -> None:
        _require_usable(args)
        settings = Settings.read(args)
        self._llm = self.load(settings)
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
        self._worker.start()
        self._sender.start()

    def _take(self, request: Any, port: TritonPort) -> Failure | None:
        job = self._read(request, port)
        failure = self._worker.accept(job)
        if failure:
            self._tally.refused += 1
        else:
            self._sender.watch(job)
        return failure

    def _read(self, request: Any, port: TritonPort) -> Job:
        arrived = time.monotonic()
        values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        parameters = json.loads(request.parameters() or "{}")
        question = questions.read(values, parameters, request.timeout())
        questions.require_readable(question, self._llm.engine.limits.longest_prompt)
        try:
            asked = self._llm.read(question.prompt, question.params)
        except UserError as error:
            raise UserError(f"{question.source}: {error.message}", error.hint) from None
        wanted = frozenset(request.requested_output_names())
        deadline = arrived + question.timeout if question.timeout else None
        return Job(question, asked, port, wanted, arrived, deadline)

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
        "slots": llm.engine.limits.batch,
        "cache_bytes": cache.decode,
        "full_cache_bytes": cache.full,
    }


def _metrics(args: Mapping[str, str]) -> Metrics | None:
    try:
        return Metrics({"model": args["model_name"], "version": args["model_version"]})
    except triton.TritonModelException as error:
        triton.Logger.log_warn(f"no metrics of the model: {error}")
        return None
