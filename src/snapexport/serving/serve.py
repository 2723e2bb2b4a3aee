"""Runs `snapexport serve`: the API over a model in this process.

Each part starts after the parts it needs, and ends before them. The first SIGINT or SIGTERM starts
a drain, in which running answers may finish within a bound; the second cuts it short. The process
then ends within some seconds, whatever still runs in it.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError, flag_of
from snapexport.runtime.chat.chat_prompts import open_template
from snapexport.runtime.chat.parsers.table import OutputFormat
from snapexport.runtime.chat.template_files import has_template
from snapexport.runtime.chat.template_habits import sources
from snapexport.runtime.requests.generation_config import CONFIG, recommended_sampling
from snapexport.serving.health import Health
from snapexport.serving.memory.server import BoundedServer
from snapexport.serving.model import Model, has_tokenizer, warm_up
from snapexport.serving.openai.api import Api
from snapexport.serving.openai.bodies.parsing import BodyReader
from snapexport.serving.openai.http.access import Access, allowed_hosts
from snapexport.serving.openai.http.connections import (
    ACCEPTED,
    BACKLOG,
    connection_factory,
    raise_file_limit,
)
from snapexport.serving.options import ServeOptions
from snapexport.serving.process import Addresses, url_of

OWN = ("temperature", "top_p", "max_tokens")
"""Options of the server. They come before the checkpoint's values."""


@dataclass(frozen=True)
class Defaults:
    """values: by names of SamplingParams. sources: where each comes from."""

    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: ServeOptions) -> "Defaults":
        """Find those of a build and its server. Raises UserError for a wrong file."""
        found = {} if options.no_generation_config else recommended_sampling(options.build)
        own = {name: value for name in OWN if (value := getattr(options, name)) is not None}
        sources = dict.fromkeys(found, CONFIG) | {name: flag_of(name) for name in own}
        return cls(found | own, sources)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value:g} ({self.sources[name]})" for name, value in self.values.items()
        )


@dataclass(frozen=True)
class Report:
    """Called with the addresses once it serves, and with the drain's seconds; 0: it is cut short.

    note: called with a line about the model: what was compared with transformers when it was
    built, and the values of requests that name none, if they are not OpenAI's.
    """

    note: Callable[[str], None]
    serving: Callable[[Addresses], None]
    draining: Callable[[float], None]


def serve(options: ServeOptions, report: Report) -> None:
    """Serve until SIGINT or SIGTERM. Raises UserError."""
    with bind(options.host, options.port) as listener:
        if not has_tokenizer(options):
            report.note("the build has no tokenizer: prompts are token ids, answers have no text")
        defaults = Defaults.of(options)
        if defaults.values:
            report.note(f"requests that name none get {defaults}")
        memory = BoundedServer.of(options)
        memory.begin()
        model = _load(memory.options, defaults.values)
        memory.settle(model)
        if memory.bound:
            report.note(f"memory: at most {memory.bound}")
        if (manifest := Manifest.read(options.build)).verified:
            report.note(f"verification: {manifest.comparison}")
        asyncio.run(_answer(model, memory, listener, report))


def _load(options: ServeOptions, defaults: Mapping[str, Any]) -> Model:
    """Load the build into this process, and run every graph once."""
    template = open_template(options.build) if has_template(options.build) else None
    parsers = options.tool_parser, options.reasoning_parser
    model = Model.load(
        options,
        logging.getLogger("uvicorn.error").error,
        template=template,
        output_format=OutputFormat.of(sources(template) if template else "", *parsers),
        request_seconds=options.request_seconds,
        defaults=defaults,
    )
    try:
        warm_up(model.llm)
    except Exception as error:
        raise UserError(
            f"{options.build} does not run: {type(error).__name__}: {error}",
            f"try `snapexport generate {options.build} --prompt Hello`",
        ) from error
    return model


async def _answer(
    model: Model, memory: BoundedServer, listener: socket.socket, report: Report
) -> None:
    options = memory.options
    signals, streams = Signals(lambda: report.draining(0)), model.streams
    streams.start()
    health = Health(streams)
    bodies = BodyReader(memory.queue.body, memory.queue.bodies)
    access = _access(options, listener)
    api = Api(model, health, access=access, page=options.page, bodies=bodies)
    signals.listen()
    seconds = 0.0
    async with listening(api, listener):
        report.serving(Addresses.at(url_of(listener), model.name, page=options.page))
        try:
            watch = memory.watch(model)
            await first_of(signals.received.wait(), health.supervise(), watch)
            seconds = options.drain_seconds
            report.draining(seconds)
        finally:
            await drain(api, streams.close, signals, seconds)


def _access(options: ServeOptions, listener: socket.socket) -> Access:
    hosts = allowed_hosts(listener.getsockname()[0], options.allowed_host)
    log = _log if options.access_log else None
    return Access(hosts, options.api_key, log, options.allowed_origin)


def _log(line: str) -> None:
    with suppress(OSError):  # nobody may be there any more to read it
        print(line, file=sys.stderr, flush=True)


CLOSING_SECONDS = 3
"""Seconds for the last bytes of ended answers, and then for their connections."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HURRY_SECONDS = 3.0
"""Seconds from the second signal to the end of the process, for its clean-up."""


@contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet. Raises UserError.

    Binding before the build is loaded refuses a port in use at once.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UserError(
            f"--host {host}: {error.strerror}", "use an address of this machine"
        ) from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _port_error(host, port, error) from None
        yield listener


def _port_error(host: str, port: int, error: BaseException | None) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    hint = "choose another --port; 0: a free one"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return UserError(f"--host {host}: {reason}", "use an address of this machine")
    return UserError(f"--port {port} on {host}: {reason}", hint)


class Signals:
    """Events of the event loop in which `listen` is called. hurry: called by the second signal."""

    def __init__(self, hurry: Callable[[], None] = lambda: None) -> None:
        self._hurry = hurry
        self.received = asyncio.Event()
        self.hurried = asyncio.Event()

    def listen(self) -> None:
        """Let signals set `received` and then `hurried`, until the loop closes."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._take, number)

    def _take(self, number: int) -> None:
        if self.received.is_set() and not self.hurried.is_set():
            self.hurried.set()
            self._hurry()
            self._end_soon(128 + number)
        self.received.set()

    def _end_soon(self, status: int) -> None:
        """End the process after a while, even if a thread of it never ends."""
        end = threading.Timer(HURRY_SECONDS, os._exit, [status])
        end.daemon = True
        end.start()


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `Signals` handles signals, since uvicorn would not drain."""
        yield


@asynccontextmanager
async def listening(api: Api, listener: socket.socket) -> AsyncIterator[None]:
    """Answer on a bound socket while the block lasts."""
    raise_file_limit()
    config = uvicorn.Config(
        api.app(),
        http=connection_factory(),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_level="error",  # a warning for each bad request would fill the log
        access_log=False,
        backlog=ACCEPTED,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    server = _Uvicorn(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if serving.done():
                host, port = listener.getsockname()[:2]
                raise _port_error(host, port, serving.exception())
            await asyncio.sleep(0.01)
        listener.listen(BACKLOG)  # asyncio has one number for both
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({serving})


async def drain(
    api: Api,
    close: Callable[[], Coroutine[Any, Any, None]],
    signals: Signals,
    seconds: float,
) -> None:
    """Refuse new requests, wait `seconds` for running ones, then end them by `close`."""
    api.gate.closed = True
    await first_of(api.gate.empties(seconds), signals.hurried.wait())
    await close()
    await api.gate.empties(CLOSING_SECONDS)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first to end, and cancel the others. Raises the first one's exception."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
