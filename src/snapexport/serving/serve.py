"""Runs `snapexport serve`: the API in front of a generator, in this process or in Triton.

Each part starts after the parts it needs, and ends before them.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError, needs_extra
from snapexport.runtime.engine.graph_set import PrefillForm
from snapexport.runtime.requests.llm import LLM
from snapexport.serving.addresses import Addresses, url_of
from snapexport.serving.child_process import Backing
from snapexport.serving.in_process import InProcessGenerator
from snapexport.serving.metrics import constant_gauges
from snapexport.serving.openai.access import Access, allowed_hosts
from snapexport.serving.openai.api_server import Api
from snapexport.serving.openai.errors import ApiError
from snapexport.serving.openai.health import Health, supervise
from snapexport.serving.openai.http_server import bound, drain, first_of, listening
from snapexport.serving.openai.preprocess import Preprocessor
from snapexport.serving.openai.signals import Signals
from snapexport.serving.options import ServeOptions
from snapexport.serving.warm_up import warm_up

FIRST_TOKEN_SECONDS = 900.0
"""Seconds for the first answer, before the addresses are printed."""


Started = AbstractAsyncContextManager[Backing]


@dataclass(frozen=True)
class Report:
    """Called with the addresses once it serves, and with the drain's seconds."""

    serving: Callable[[Addresses], None]
    draining: Callable[[float], None]


def serve(options: ServeOptions, report: Report) -> None:
    """Serve until SIGINT or SIGTERM. Raises UserError."""
    with ExitStack() as stack:
        listener = stack.enter_context(bound(options.host, options.port, "--port"))
        signals = stack.enter_context(Signals())
        extends = options.parked_rows or options.compress_every
        form: PrefillForm = "both" if extends else "chunks"
        preprocessor = Preprocessor.open(options.build, options.max_pending, form)
        stack.callback(preprocessor.close)
        if options.triton:
            with needs_extra("triton"):
                from snapexport.serving.triton.behind import started
            start = stack.enter_context(started(options, signals.hurried.is_set, _log))
        else:
            start = _load(options)
        asyncio.run(_answer(options, preprocessor, listener, start, signals, report))


def _load(options: ServeOptions) -> Callable[[], Started]:
    """Load the build into this process, and run every graph once."""
    llm = LLM(
        options.build,
        threads=options.threads,
        max_num_batched_tokens=options.token_budget,
        backend=options.backend,
        parked_rows=options.parked_rows,
        parked_dir=options.parked_dir,
        parked_dir_bytes=options.parked_dir_bytes,
        speculates=not options.no_speculation,
        compress_every=options.compress_every,
    )
    try:
        warm_up(llm)
    except Exception as error:
        raise UserError(
            f"{options.build} does not run: {type(error).__name__}: {error}",
            f"try `snapexport generate {options.build} --prompt Hello`",
        ) from error
    return lambda: _in_process(llm, options)


@asynccontextmanager
async def _in_process(llm: LLM, options: ServeOptions) -> AsyncIterator[Backing]:
    generator = InProcessGenerator(
        llm,
        max_pending=options.max_pending,
        request_seconds=options.request_seconds,
        labels={"model": options.model_name, "version": "1"},
        gauges=constant_gauges(Manifest.read(options.build)),
        log=logging.getLogger("uvicorn.error").error,
    )
    generator.start()
    try:
        yield Backing(generator, generator)
    finally:
        await generator.close()


async def _answer(
    options: ServeOptions,
    preprocessor: Preprocessor,
    listener: socket.socket,
    start: Callable[[], Started],
    signals: Signals,
    report: Report,
) -> None:
    async with start() as backing:
        generator = backing.generator
        await _require_answer(backing)
        health = Health(generator)
        api = Api(options.model_name, preprocessor, health, _access(options, listener))
        signals.listen()
        async with listening(api, listener):
            report.serving(_addresses(options, listener, backing))
            supervision = supervise(backing, health)
            try:
                await first_of(signals.received.wait(), supervision)
            except BaseException:
                await drain(api, generator.close, signals, 0)
                raise
            report.draining(options.drain_seconds)
            await drain(api, generator.close, signals, options.drain_seconds)


async def _require_answer(backing: Backing) -> None:
    """Wait for a first token, since a ready server may have a model that is not ready."""
    health = Health(backing.generator, FIRST_TOKEN_SECONDS)
    try:
        supervision = supervise(backing, health)
        await first_of(health.require_token(), supervision)
    except ApiError as error:
        raise backing.failed(str(error)) from None


def _access(options: ServeOptions, listener: socket.socket) -> Access:
    hosts = allowed_hosts(listener.getsockname()[0], options.allowed_host)
    return Access(hosts, options.api_key, _log if options.access_log else None)


def _log(line: str) -> None:
    with suppress(OSError):  # nobody may be there any more to read it
        print(line, file=sys.stderr, flush=True)


def _addresses(options: ServeOptions, listener: socket.socket, backing: Backing) -> Addresses:
    url = url_of(listener)
    return Addresses(
        options.model_name,
        f"{url}/v1",
        f"{url}/health",
        backing.metrics or f"{url}/metrics",
        backing.http,
        backing.grpc,
    )
