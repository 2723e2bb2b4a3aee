"""Runs `snapexport serve`: the API over a model in this process.

Each part starts after the parts it needs, and ends before them.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError, flag_of
from snapexport.runtime.chat.chat_prompts import open_template
from snapexport.runtime.chat.parsers.table import OutputFormat
from snapexport.runtime.chat.template_files import has_template
from snapexport.runtime.chat.template_habits import sources
from snapexport.runtime.requests.generation_config import CONFIG, served_sampling
from snapexport.serving.model import Model, require_tokenizer, warm_up
from snapexport.serving.openai.api import Api
from snapexport.serving.openai.http.access import Access, allowed_hosts
from snapexport.serving.openai.http.health import Health
from snapexport.serving.openai.http.server import Signals, bind, drain, first_of, listening
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
        found = {} if options.no_generation_config else served_sampling(options.build)
        own = {name: value for name in OWN if (value := getattr(options, name)) is not None}
        sources = dict.fromkeys(found, CONFIG) | {name: flag_of(name) for name in own}
        return cls(found | own, sources)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value:g} ({self.sources[name]})" for name, value in self.values.items()
        )


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
    with bind(options.host, options.port) as listener:
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
    parsers = options.tool_parser, options.reasoning_parser
    model = Model.load(
        options,
        logging.getLogger("uvicorn.error").error,
        template=template,
        output_format=OutputFormat.of(sources(template) if template else "", *parsers),
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
