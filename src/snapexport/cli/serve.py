"""Serve a build: Triton Inference Server, and OpenAI's HTTP interface in front of it.

Needs tritonserver on PATH, or the wheel nvidia-pytriton (CPU alone). It tells its addresses once a
real prompt was answered. SIGINT or SIGTERM ends it: running answers may finish first, a second
signal does not wait for them. docs/serving.md has the API's fields.

examples:
  snapexport serve llama.build
  snapexport serve llama.build --port 9000 --max-pending 128 --json
"""

import argparse
import dataclasses
import json
from contextlib import suppress
from pathlib import Path

from snapexport.cli import flags
from snapexport.cli.console import ERR, OUT
from snapexport.contract.errors import needs_extra
from snapexport.serving.openai.addresses import Addresses
from snapexport.serving.openai.options import ServeOptions

HELP = "serve a build: Triton, and an OpenAI-compatible API"

ADDRESSES = {
    "host": "where the API listens; Triton itself stays on 127.0.0.1",
    "port": "of the API; 0: a free one",
    "http_port": "of Triton; 0: a free one",
    "grpc_port": "of Triton; 0: a free one",
    "metrics_port": "of Triton; 0: a free one",
}
MODEL = {
    "name": "the model's name (default: the build directory's)",
    "device": "where Triton places it (default: gpu for a build with TensorRT engines)",
    "max_pending": "requests that may wait for a slot; further ones are refused",
    "threads": "CPU threads (default: all cores)",
    "token_budget": "tokens of one step, prefill and decode (default: a prefill chunk and a slot's "
    "token each)",
    "repository": "write the model repository here, and keep it (default: a temporary one)",
}
TIMES = {
    "request_seconds": "an answer that takes longer is given up",
    "drain_seconds": "how long running answers may go on after a signal",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, and the fields of ServeOptions."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    flags.add_fields(parser.add_argument_group("addresses"), ServeOptions, ADDRESSES)
    flags.add_fields(parser.add_argument_group("model"), ServeOptions, MODEL)
    flags.add_fields(parser.add_argument_group("times"), ServeOptions, TIMES)
    parser.add_argument("--json", action="store_true", help="tell the addresses as one JSON line")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    given = flags.values(arguments, ADDRESSES | MODEL | TIMES)
    options = ServeOptions(build=arguments.build, **given)
    with needs_extra("serve"):
        from snapexport.serving.openai.serving import serve
    serve(options, _tell_json if arguments.json else _tell, _tell_ending)
    return 0


def _tell(addresses: Addresses) -> None:
    OUT.print(
        f"{addresses.model} answers\n"
        f"  OpenAI   {addresses.openai}\n"
        f"  Triton   {addresses.http}, gRPC {addresses.grpc}\n"
        f"  metrics  {addresses.metrics}\n\n"
        f"{addresses.curl}",
        markup=False,
    )


def _tell_ending(seconds: float) -> None:
    text = f"ending: running answers have {seconds:g} s to finish; a second signal does not wait"
    with suppress(OSError):  # nobody may be there any more to read it
        ERR.print(text, soft_wrap=True)


def _tell_json(addresses: Addresses) -> None:
    print(json.dumps(dataclasses.asdict(addresses)), flush=True)
