"""Serves a build as a Dynamo engine, which prefills, decodes, or does both.

`run_worker` runs it in this process, until a signal ends it. Dynamo's own worker around it
registers the model, takes signals and drains. Runs in Dynamo's event loop; the LLM has a thread of
its own.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import uvloop
from dynamo._core import Context
from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.health_check import build_health_check_payload, is_probe
from dynamo.common.backend.worker import Worker, WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import (
    Cancelled,
    DynamoException,
    EngineShutdown,
    InvalidArgument,
    Unknown,
    WorkerUnavailable,
)

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.runtime.chat.template_files import has_template
from snapexport.runtime.engine.graph_set import Role
from snapexport.runtime.requests.request import Request
from snapexport.serving.dynamo import frontend, handover
from snapexport.serving.dynamo.frontend import Chunk, chunk_of, only_chunk
from snapexport.serving.dynamo.transfer import METRICS, Fetcher, Landed, Lender, Moved
from snapexport.serving.dynamo.transport import FetchError, Transport
from snapexport.serving.health import Health, UnhealthyError
from snapexport.serving.model import Model, require_tokenizer
from snapexport.serving.options import WorkerOptions
from snapexport.serving.streams import Stream
from snapexport.serving.worker import CANCELLED, FailureCode, GenerationError

MODES: dict[Role, DisaggregationMode] = {
    "both": DisaggregationMode.AGGREGATED,
    "prefill": DisaggregationMode.PREFILL,
    "decode": DisaggregationMode.DECODE,
}
_ERRORS: dict[FailureCode, type[DynamoException]] = {
    "cancelled": Cancelled,
    "full": WorkerUnavailable,
    "stopping": EngineShutdown,
}
_BLOCK = 16
"""Dynamo counts caches in blocks; a batch slot's compressed cache has no pages."""

_DRAIN_POLL_SECONDS = 0.05
_LOG = logging.getLogger("snapexport.dynamo")


class SnapexportEngine(LLMEngine):
    """One worker. The model is loaded before Dynamo knows of the worker."""

    def __init__(self, options: WorkerOptions) -> None:
        """Load the build. Raises UserError."""
        self._options = options
        self._model = Model.load(options, _LOG.error, request_seconds=options.request_seconds)
        self._streams = self._model.streams
        self._health = Health(self._streams, asks=options.role != "decode")
        self._active: dict[str, Stream] = {}
        self._moved = Moved.by(Manifest.read(options.build))
        self._transport: Transport | None = None
        self._lender: Lender | None = None
        self._fetcher: Fetcher | None = None

    @classmethod
    async def from_args(
        cls, argv: list[str] | None = None
    ) -> tuple["SnapexportEngine", WorkerConfig]:
        """Dynamo's own entry point: the arguments of `snapexport dynamo`."""
        raise UserError("a worker is started by `snapexport dynamo`", "snapexport dynamo --help")

    async def start(self, worker_id: int) -> EngineConfig:
        """Start the LLM's thread, and register its memory with NIXL."""
        self._streams.start()
        if self._options.role != "both":
            self._transport = Transport(f"snapexport-{self._options.role}-{worker_id}")
            self._connect(self._transport)
        limits = self._model.limits
        return EngineConfig(
            model=str(self._options.build),
            served_model_name=self._options.model_name,
            llm=LlmRegistration(
                context_length=limits.positions,
                kv_cache_block_size=_BLOCK,
                total_kv_blocks=limits.batch * -(-limits.longest_prompt // _BLOCK),
                max_num_seqs=limits.batch,
            ),
        )

    def _connect(self, transport: Transport) -> None:
        seconds = self._options.lease_seconds
        if self._options.role == "prefill":
            self._lender = Lender(self._model, transport, seconds)
        else:
            self._fetcher = Fetcher(self._model.llm.executor, transport, self._moved, seconds / 3)

    async def generate(
        self, request: dict[str, Any], context: Context
    ) -> AsyncGenerator[Chunk, None]:
        """The chunks of one request. Raises Dynamo's exceptions."""
        normalize_request_token_ids(request)
        try:
            if is_probe(request):
                await self._health.check()
                yield only_chunk([0], "length", len(request["token_ids"]))
                return
            async with aclosing(self._chunks(request, context)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except UserError as error:
            raise InvalidArgument(str(error)) from error
        except UnhealthyError as error:
            raise Unknown(str(error)) from error
        except FetchError as error:
            raise WorkerUnavailable(str(error)) from error
        except GenerationError as error:
            if error.code != "cancelled":
                raise _ERRORS.get(error.code, Unknown)(str(error)) from error
            yield only_chunk([], "cancelled", len(request["token_ids"]))

    async def _chunks(self, given: dict[str, Any], context: Context) -> AsyncGenerator[Chunk, None]:
        request = await asyncio.to_thread(frontend.read, self._model, given)
        length, count = len(request.prompt_token_ids), 0
        async with AsyncExitStack() as stack:
            stream, landed = await self._begin(given, request, context, stack)
            async for delta in await stack.enter_async_context(
                aclosing(self._streams.outputs(stream))
            ):
                output = landed.complete(delta) if landed else delta
                count += len(output.token_ids)
                chunk = chunk_of(output, length, count, self._model.text_of)
                if output.row and self._lender:
                    assert stream.request_id is not None
                    hand_over = self._lender.message(stream.request_id, output, output.row)
                    chunk["disaggregated_params"] = hand_over.model_dump()
                yield chunk

    async def _begin(
        self, given: Mapping[str, Any], request: Request, context: Context, stack: AsyncExitStack
    ) -> tuple[Stream, Landed | None]:
        """The request's stream, which `abort` finds, and its prompt if another worker made it."""
        landed = None
        if self._fetcher:
            handed_over = handover.read(_handed_over(given))
            landed = await stack.enter_async_context(
                self._fetcher.land(handed_over, request, partial(_require_wanted, context))
            )
            request = landed.request
        elif self._lender:
            request = replace(request, hand_over=True)
        _require_wanted(context)
        stream = Stream(request=request, timeout=self._options.request_seconds)
        self._active[context.id()] = stream
        stack.callback(self._forget, context.id(), stream)
        return stream, landed

    def _forget(self, context_id: str, stream: Stream) -> None:
        if self._active.get(context_id) is stream:  # a retry has the same id
            del self._active[context_id]

    async def abort(self, context: Context) -> None:
        """The client left, or the frontend found a stop string: free the batch slot."""
        if stream := self._active.get(context.id()):
            self._streams.worker.cancel(stream, CANCELLED)

    async def is_quiescent(self) -> bool:
        """Whether no row waits to be fetched."""
        return not (self._active or (self._lender and len(self._lender.leases)))

    async def health_check_payload(self) -> dict[str, Any]:
        """A prompt of one token, which `Health` answers: it waits for no other prompt."""
        return dict(build_health_check_payload(bos_token_id=0))

    async def register_prometheus(self, metrics: Any) -> None:
        """Add the worker's metrics to those of Dynamo's runtime."""
        labels = dict(metrics.auto_labels)
        metrics.register_prometheus_expfmt_callback(
            lambda: self._model.metrics(labels, METRICS, self._moved_values())
        )

    def _moved_values(self) -> dict[str, float]:
        values: dict[str, float] = asdict(self._moved) if self._fetcher else {}
        if self._lender:
            leases = self._lender.leases
            values |= {"leases": len(leases), "leases_expired_total": leases.expired}
        return values

    async def cleanup(self) -> None:
        """Let running answers finish, and end. A second call does nothing.

        Nothing new comes: Dynamo has withdrawn the worker from discovery.
        """
        end = time.monotonic() + self._options.drain_seconds
        while not await self.is_quiescent() and time.monotonic() < end:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        if self._lender:
            await self._lender.close()
        await self._streams.close()
        if self._transport:
            self._transport.close()


def _require_wanted(context: Context) -> None:
    """Raise GenerationError if the client has left, before there is a stream to cancel."""
    if context.is_stopped():
        raise GenerationError(CANCELLED)


def _handed_over(given: Mapping[str, Any]) -> Any:
    result = given.get("prefill_result")
    if not isinstance(result, Mapping):
        raise UserError(
            "a decode worker got a request that no prefill worker has seen",
            "start a worker with --role prefill, or use --role both",
        )
    return result.get("disaggregated_params")


_ENDPOINT = "generate"


def run_worker(options: WorkerOptions) -> None:
    """Load the build, and serve it until SIGTERM or SIGINT. Raises UserError."""
    require_tokenizer(options)
    engine = SnapexportEngine(options)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model's card is the build's own files
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Dynamo's worker takes them from here on
    uvloop.run(Worker(engine, _config(options)).run())


def _config(options: WorkerOptions) -> WorkerConfig:
    chats = options.chat_template is not None or has_template(options.build)
    return WorkerConfig(
        namespace=options.namespace,
        component=options.component_name,
        endpoint=_ENDPOINT,
        model_name=str(options.build.absolute()),
        served_model_name=options.model_name,
        endpoint_types="chat,completions" if chats else "completions",
        discovery_backend=options.discovery,
        event_plane=options.event_plane,
        custom_jinja_template=str(options.chat_template) if options.chat_template else None,
        enable_kv_routing=False,  # a compressed cache has no blocks that prompts could share
        disaggregation_mode=MODES[options.role],
    )
