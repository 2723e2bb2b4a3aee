"""Serve a build with NVIDIA Dynamo: prefill and decode in separate workers.

`snapexport dynamo BUILD` is one worker of a cluster; its frontend is Dynamo's (`python -m
dynamo.frontend`). A prefill worker compresses a prompt's cache, and a decode worker fetches it by
NIXL. `snapexport dynamo up BUILD` starts a frontend and workers on this machine, to try it.

examples:
  snapexport dynamo up llama.build --prefill 1 --decode 2
  snapexport dynamo llama.build --role prefill --discovery etcd
  snapexport dynamo llama.build --role decode --discovery etcd
"""

import argparse
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from snapexport.cli import flags
from snapexport.cli.console import OUT
from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError, flag_of
from snapexport.serving.options import ClusterOptions, WorkerOptions

HELP = "serve a build with NVIDIA Dynamo, prefill and decode in separate workers"
UP = "up"

BOTH = flags.SERVED | {
    "lease_seconds": "how long a prefilled prompt waits for a decode worker that sends no note"
}
WORKER = {
    "role": "what the worker does",
    "namespace": "Dynamo's namespace",
    "component": "Dynamo's component (default: prefill, or backend for other roles)",
    "discovery": "how the parts find each other; file: through the folder $DYN_FILE_KV",
    "event_plane": "how the parts send each other events",
    "chat_template": "chat template in Jinja's language (default: the build's)",
    "request_seconds": "longest time of an answer in a worker",
    "drain_seconds": "how long running answers may go on after a signal",
}
CLUSTER = {
    "prefill": "prefill workers; 0: each worker does both",
    "decode": "decode workers",
    "port": "port of the API, on 127.0.0.1; 0: a free one",
    "migrations": "how often a request may go on in another worker after its own has died",
    "logs": "folder for a log of each process (default: a temporary one)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, and the fields of both option classes."""
    parser.usage = "%(prog)s [up] BUILD [flags]"
    parser.add_argument(
        "words", nargs="+", metavar="[up] BUILD", help="a build directory; up: start a cluster"
    )
    flags.add_fields(parser, WorkerOptions, BOTH)
    flags.add_fields(parser.add_argument_group("a worker"), WorkerOptions, WORKER)
    flags.add_fields(parser.add_argument_group("up"), ClusterOptions, CLUSTER)


def run(arguments: argparse.Namespace) -> int:
    """Run a worker or a cluster until a signal comes."""
    from snapexport.serving.dynamo.up import require_installed, run_cluster

    *verb, build = arguments.words
    common = flags.values(arguments, BOTH)
    if not verb:
        given = _first_given(arguments, ClusterOptions, CLUSTER)
        require_compatible({"dynamo": "worker", "cluster_flag": given})
        options = WorkerOptions(build=Path(build), **common, **flags.values(arguments, WORKER))
        require_installed()
        from snapexport.serving.dynamo.engine import run_worker

        run_worker(options)
        return 0
    if verb != [UP]:
        raise UserError(
            f"'{' '.join(verb)}' is not a command of `snapexport dynamo`",
            "snapexport dynamo up BUILD",
        )
    given = _first_given(arguments, WorkerOptions, WORKER)
    require_compatible({"dynamo": UP, "worker_flag": given})
    cluster = ClusterOptions(build=Path(build), **common, **flags.values(arguments, CLUSTER))
    run_cluster(cluster, OUT.print)
    return 0


def _first_given(arguments: argparse.Namespace, options: type, names: Iterable[str]) -> str:
    """The first flag whose value is not its default; empty if there is none."""
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    given = (name for name in names if getattr(arguments, name) != defaults[name])
    return next(map(flag_of, given), "")
