"""Runs `snapexport serve`: the API over a model in this process.

Each part starts after the parts it needs, and ends before them.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.runtime.chat.chat_prompts import open_template
from snapexport.runtime.chat.end_token import Template, sources
from snapexport.runtime.chat.parsers.table import OutputFormat
from snapexport.runtime.chat.template_files import has_template
from snapexport.serving.addresses import Addresses, url_of
from snapexport.serving.defaults import Defaults
from snapexport.serving.model import Model, require_tokenizer
from snapexport.serving.openai.access import Access, allowed_hosts
from snapexport.serving.openai.api_server import Api
from snapexport.serving.openai.health import Health
from snapexport.serving.openai.http_server import bound, drain, first_of, listening
from snapexport.serving.openai.signals import Signals
from snapexport.serving.options import ServeOptions
from snapexport.serving.warm_up import warm_up


@dataclass(frozen=True)
class Report:
    """Called with the addresses once it serves, and with the drain's seconds.

    note: called with a line about the model: what was compared with transformers when it was
    built, and the values of requests that name none, if they are not OpenAI's.
    """

    note: Callable[[str], None]
    serving: Callable[[Addresses], None]
    draining: Callable[[float], None]


def serve(options: ServeOptions, report: Report) -> None:
    """Serve until SIGINT or SIGTERM. Raises UserError."""
    with bound(options.host, options.port) as listener:
        defaults = Defaults.of(options)
        if defaults.values:
            report.note(f"requests that name none get {defaults}")
        model = _load(options, defaults.values)
        report.note(f"verification: {Manifest.read(options.build).comparison}")
        asyncio.run(_answer(model, options, listener, report))


def _load(options: ServeOptions, defaults: Mapping[str, Any]) -> Model:
    """Load the build into this process, and run every graph once."""
    require_tokenizer(options)
    template = open_template(options.build) if has_template(options.build) else None
    model = Model.load(
        options,
        logging.getLogger("uvicorn.error").error,
        template=template,
        output_format=_output_format(template, options),
        request_seconds=options.request_seconds,
        defaults=defaults,
        backend=options.backend,
        device=options.device,
        precision=options.precision,
        parked_rows=options.parked_rows,
        parked_dir=options.parked_dir,
        parked_dir_bytes=options.parked_dir_bytes,
        speculates=not options.no_speculation,
        compress_every=options.compress_every,
    )
    try:
        warm_up(model.llm)
    except Exception as error:
        raise UserError(
            f"{options.build} does not run: {type(error).__name__}: {error}",
            f"try `snapexport generate {options.build} --prompt Hello`",
        ) from error
    return model


def _output_format(template: Template | None, options: ServeOptions) -> OutputFormat:
    source = sources(template) if template else ""
    return OutputFormat.of(source, options.tool_parser, options.reasoning_parser)


async def _answer(
    model: Model, options: ServeOptions, listener: socket.socket, report: Report
) -> None:
    signals, streams = Signals(), model.streams
    streams.start()
    health = Health(streams)
    api = Api(model, health, access=_access(options, listener))
    signals.listen()
    seconds = 0.0
    async with listening(api, listener):
        report.serving(Addresses.at(url_of(listener), model.name))
        try:
            await first_of(signals.received.wait(), health.supervise())
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
