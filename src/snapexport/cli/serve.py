"""Serve a build through an OpenAI-compatible HTTP API, in one process.

Prints the addresses once every graph has run. SIGINT or SIGTERM drains: running answers may finish,
new requests get status 503; a second signal ends them at once.

examples:
  snapexport serve llama.build
  snapexport serve llama.build --port 9000 --max-pending 128 --json
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from snapexport.cli import flags
from snapexport.cli.console import ERR, OUT, say
from snapexport.contract.manifest import Manifest
from snapexport.errors import needs_extra
from snapexport.methods.table import run_flags
from snapexport.serving.options import ServeOptions
from snapexport.serving.process import Addresses

API_KEY = "SNAPEXPORT_API_KEY"
HELP = "serve a build through an OpenAI-compatible API"

GROUPS: Mapping[str, Mapping[str, str]] = {
    "API": {"host": "address of the API", "port": "port of the API; 0: a free one"},
    "access": {
        "api_key": f"key that all but /health and the page want (default: ${API_KEY}, or none)",
        "allowed_host": "further names by which clients reach the server, in the header Host; "
        "*: any (default: loopback names if it listens on loopback, else any)",
        "allowed_origin": "origins whose pages may read answers in a browser, such as "
        "http://localhost:3000; *: any (default: none)",
        "page": "do not answer browsers at / with a page to chat on",
        "access_log": "write a line for each request to standard error, without its content",
    },
    "model": flags.SERVED
    | {
        "memory": "most resident memory of this process, on a CPU; what can't fit is refused at "
        "once, and requests that would not fit get status 503 (default: no limit)"
    }
    | run_flags(ServeOptions)
    | flags.PROMPT_CACHE
    | flags.BACKEND,
    "chats": {
        "tool_parser": "how the model writes tool calls; auto: by its chat template; none: as text",
        "reasoning_parser": "how the model writes its reasoning; none: as a part of the answer",
    },
    "defaults of requests": {
        "temperature": "of requests that name none (default: generation_config.json's, else 1)",
        "top_p": "of requests that name none (default: generation_config.json's, else 1)",
        "max_tokens": "of requests that name none (default: 16 for completions; for chats all "
        "remaining positions)",
        "no_generation_config": "ignore the sampling that the checkpoint recommends",
    },
    "times": {
        "request_seconds": "longest time of an answer; a longer one ends with status 504",
        "drain_seconds": "how long running answers may go on after a signal",
    },
}
"""Help texts of fields of `ServeOptions`, by the titles of their groups."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, and the fields of ServeOptions."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    for title, helps in GROUPS.items():
        flags.add_fields(parser.add_argument_group(title), ServeOptions, helps)
    parser.add_argument("--json", action="store_true", help="print the addresses as one JSON line")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    given = flags.values(arguments, [name for helps in GROUPS.values() for name in helps])
    if given["api_key"] is None:  # the environment does not show in a list of processes
        given["api_key"] = os.environ.get(API_KEY)
    Manifest.read(arguments.build)  # before the server's libraries load
    options = ServeOptions(build=arguments.build, **given)
    with needs_extra("serve"):
        from snapexport.serving.serve import Report, serve
    serving = _print_json if arguments.json else _print
    serve(options, Report(say, serving, _print_draining))
    return 0


def _print(addresses: Addresses) -> None:
    lines = [
        f"{addresses.model} answers",
        f"  OpenAI   {addresses.openai}",
        f"  health   {addresses.health}",
        f"  metrics  {addresses.metrics}",
    ]
    if addresses.page:
        lines.insert(1, f"  page     {addresses.page}")
    OUT.print("\n".join([*lines, "", addresses.curl]))


def _print_draining(seconds: float) -> None:
    text = f"draining: running answers have {seconds:g} s to finish; a second signal does not wait"
    begin = "\n" * ERR.is_terminal  # after the ^C that a terminal shows
    with suppress(OSError):  # nobody may be there any more to read it
        say(begin + (text if seconds else "ending running answers now"))


def _print_json(addresses: Addresses) -> None:
    print(json.dumps(dataclasses.asdict(addresses)), flush=True)
