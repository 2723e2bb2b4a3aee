"""Runs Triton's server as a child process on loopback, and ends it in every case."""

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from snapexport.serving.process import answers, free_port, leash
from tests.serving.triton.installation import environment, find, python_backend

HOST = "127.0.0.1"
EXIT_SECONDS = 5
"""Seconds that the server gives running requests when it has to end."""
READY_SECONDS = 300


class ServerError(Exception):
    """The server did not start; with its log."""


class Server:
    """A running server; leaving the `with` block ends it, and all its processes.

    with Server(repository) as server:
        ... server.http, server.grpc, server.metrics: addresses ...
    """

    def __init__(self, repository: Path, flags: Sequence[str] = ()) -> None:
        """Start the server and wait until its models are loaded. Raises ServerError.

        flags: further flags of tritonserver.
        """
        http, grpc, metrics = (free_port(HOST) for _ in range(3))
        self.http, self.grpc = f"http://{HOST}:{http}", f"{HOST}:{grpc}"
        self.metrics = f"http://{HOST}:{metrics}/metrics"
        self._scratch = tempfile.TemporaryDirectory(prefix="snapexport-triton-")
        self._log = Path(self._scratch.name) / "triton.log"
        self._shared_memory = f"snapexport-{secrets.token_hex(8)}-"
        binary, bundle = find()
        backends = bundle and python_backend(bundle, Path(self._scratch.name))
        ports = {"http": http, "grpc": grpc, "metrics": metrics}
        command = [
            *leash(),
            str(binary),
            f"--model-repository={repository.absolute()}",
            *([f"--backend-directory={backends}"] if backends else []),
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory}",
            *(f"--{service}-address={HOST}" for service in ports),
            *(f"--{service}-port={port}" for service, port in ports.items()),
            f"--exit-timeout-secs={EXIT_SECONDS}",
            *flags,
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment(bundle),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # of which the models' processes are, too
            )
        try:
            self._wait("--allow-metrics=false" not in flags)
        except BaseException:
            self.stop(0)
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives. Its models' processes may be dead."""
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self, seconds: float = EXIT_SECONDS + 3) -> None:
        """End the server: by SIGINT, and after `seconds` by SIGKILL. May be called twice.

        Close gRPC streams first: an open stream, even an idle one, holds its model, and the server
        does not end by itself even after its exit timeout.
        """
        if self.is_running and seconds > 0:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for region in Path("/dev/shm").glob(f"{self._shared_memory}*"):
            region.unlink(missing_ok=True)
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self, has_metrics: bool) -> None:
        signs = [f"{self.http}/v2/health/ready", *([self.metrics] if has_metrics else [])]
        end = time.monotonic() + READY_SECONDS
        while not all(map(answers, signs)):
            if not self.is_running or time.monotonic() > end:
                raise ServerError(f"status {self._process.poll()}:\n{self.log()}")
            time.sleep(0.05)
