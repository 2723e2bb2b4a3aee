"""Starts a Dynamo cluster on this machine, if Dynamo is installed: a frontend and workers.

They find each other through a folder, and listen only on loopback. All of them end with this
process. Clusters of several machines are started by their own means, a worker at a time.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.serving.options import ClusterOptions
from snapexport.serving.process import Addresses, answers, free_port, leash

HOST = "127.0.0.1"
READY_SECONDS = 300.0
STOP_SECONDS = 45.0
"""From the signal to a worker's end by force: it drains first."""
_LOG_LINES = 15
_SYSTEM_PORTS = 1 << 15
"""Dynamo reads DYN_SYSTEM_PORT as a signed number of 16 bits."""


PACKAGES = {
    "dynamo._core": "ai-dynamo-runtime",
    "dynamo.common.backend": "ai-dynamo",
    "nixl": "nixl",
}
WHOLE = "pip install 'snapexport[cpu,dynamo]' && pip install --no-deps ai-dynamo nixl nixl-cu13"


def require_installed() -> None:
    """Raise UserError for a package that is missing."""
    for module, package in PACKAGES.items():
        if not _is_there(module):
            raise UserError(f"the package '{package}' is not installed", WHOLE)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


@dataclass(frozen=True)
class Member:
    """A process of the cluster. health: its URL. log: its file."""

    name: str
    process: "subprocess.Popen[bytes]"
    health: str
    log: Path

    def require_running(self) -> None:
        """Raise UserError if it has ended."""
        if (status := self.process.poll()) is not None:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise UserError(f"{self.name} ended with status {status}:\n{end}", f"see {self.log}")


def run_cluster(options: ClusterOptions, say: Callable[[str], None]) -> None:
    """Serve until a signal ends this process, or one of the cluster ends. Raises UserError."""
    with cluster(options) as (members, addresses):
        say(_text(options, addresses, members))
        while True:
            for member in members:
                member.require_running()
            time.sleep(0.5)


@contextmanager
def cluster(options: ClusterOptions) -> Iterator[tuple[list[Member], Addresses]]:
    """A frontend and its workers, ready to answer. Raises UserError."""
    require_installed()
    Build.open(options.build).require_run(command="dynamo")
    members: list[Member] = []
    with tempfile.TemporaryDirectory(prefix="snapexport-") as scratch:
        logs = options.logs or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        environment = environment_of(Path(scratch) / "discovery")
        port = options.port or free_port(HOST)
        try:
            members.append(start("frontend", frontend(options, port), environment, logs, port))
            for role, count in _roles(options).items():
                for number in range(count):
                    name = f"{role}-{number}"
                    members.append(start(name, worker(options, role), environment, logs))
            wait(members, options, port)
            yield members, Addresses.at(f"http://{HOST}:{port}", options.model_name)
        finally:
            stop(members)


def _roles(options: ClusterOptions) -> dict[str, int]:
    if not options.prefill:
        return {"both": options.decode}
    return {"prefill": options.prefill, "decode": options.decode}


def worker(options: ClusterOptions, role: str) -> list[str]:
    """The module and arguments of a worker."""
    given = {
        "role": role,
        "name": options.model_name,
        "threads": options.threads,
        "token-budget": options.max_num_batched_tokens,
        "max-pending": options.max_pending,
        "lease-seconds": options.lease_seconds,
    }
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return ["snapexport", "dynamo", str(options.build.absolute()), *words]


def frontend(options: ClusterOptions, port: int) -> list[str]:
    """The module and arguments of the frontend."""
    return [
        "dynamo.frontend",
        f"--http-host={HOST}",
        f"--http-port={port}",
        "--discovery-backend=file",
        "--request-plane=tcp",
        "--event-plane=zmq",
        f"--migration-limit={options.migrations}",
    ]


def environment_of(discovery: Path) -> dict[str, str]:
    """Ours, with Dynamo's and NIXL's listeners on loopback."""
    return os.environ | {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(discovery),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": HOST,
        "DYN_TCP_RESPONSE_STREAM_HOST": HOST,
        "DYN_SYSTEM_HOST": HOST,
        "DYN_LOG": os.environ.get("DYN_LOG", "warn"),
        "DYN_SELF_HOST_METADATA": "0",
        "UCX_NET_DEVICES": os.environ.get("UCX_NET_DEVICES", "lo"),
    }


def start(
    name: str,
    command: list[str],
    environment: Mapping[str, str],
    logs: Path,
    port: int | None = None,
) -> Member:
    """Start one process. port: the frontend's; None: a free one, for a worker's health."""
    log = logs / f"{name}.log"
    own = dict(environment)
    if port is None:
        port = free_port(HOST, _SYSTEM_PORTS)
        own["DYN_SYSTEM_PORT"] = str(port)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*leash(), sys.executable, "-m", *command],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
    return Member(name, process, f"http://{HOST}:{port}/health", log)


def stop(members: Sequence[Member]) -> None:
    """End them all at once: each drains for some seconds."""
    for member in members:
        member.process.send_signal(signal.SIGTERM)  # to no one, if it has ended
    end = time.monotonic() + STOP_SECONDS
    for member in members:
        try:
            member.process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()


def wait(members: list[Member], options: ClusterOptions, port: int) -> None:
    """Until every member is healthy, and a request was answered. Raises UserError."""
    end = time.monotonic() + READY_SECONDS
    while True:
        for member in members:
            member.require_running()
        if all(answers(member.health) for member in members) and _answers_request(
            options.model_name, port
        ):
            return
        if time.monotonic() > end:
            late = [member.name for member in members if not answers(member.health)]
            raise UserError(
                f"the cluster did not answer within {READY_SECONDS:g} s"
                + (f": {', '.join(late)} is not healthy" if late else ""),
                f"see the logs: {members[0].log.parent}",
            )
        time.sleep(0.2)


def _answers_request(model: str, port: int) -> bool:
    body = json.dumps({"model": model, "prompt": "a", "max_tokens": 2, "ignore_eos": True}).encode()
    request = urllib.request.Request(
        f"http://{HOST}:{port}/v1/completions", body, {"content-type": "application/json"}
    )
    return answers(request, seconds=30)


def _text(options: ClusterOptions, addresses: Addresses, members: list[Member]) -> str:
    lines = [
        f"{addresses.model} answers",
        f"  OpenAI     {addresses.openai}",
        f"  metrics    {addresses.metrics}",
    ]
    for worker in members[1:]:
        lines.append(f"  {worker.name:<11}{worker.health.removesuffix('health')}metrics")
    return "\n".join([*lines, "", addresses.curl])
