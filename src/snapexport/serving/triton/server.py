"""Runs Triton's server as a child process on loopback, and ends it in every case.

Responsible for the process, its ports, its log and its shared memory. Does not check whether a
model answers; `liveness` does.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from snapexport.errors import UserError
from snapexport.serving.process import answers, free_port, leash
from snapexport.serving.triton.installation import Installation, find

HOST = "127.0.0.1"
EXIT_SECONDS = 5
"""Seconds that the server gives running requests when it has to end."""

_SHARED_MEMORY = Path("/dev/shm")
_LOG_LINES = 30
_ROUTINE = re.compile(r"I\d{4} |[|+]|$")
"""Lines of the log without a reason for a failure: information, tables and empty ones."""


@dataclass(frozen=True)
class Ports:
    """The server's ports; 0: any free port."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def chosen(self) -> "Ports":
        """Free ports in place of zeros."""
        return Ports(*(port or free_port(HOST) for port in (self.http, self.grpc, self.metrics)))


class Server:
    """A running server; leaving the `with` block ends it, and all its processes.

    with Server(repository) as server:
        ... server.http, server.grpc, server.metrics: addresses ...
    """

    needs_probe = True
    """A model's process may die while the server still reports that it is ready."""

    def __init__(
        self,
        repository: Path | str,
        *,
        ports: Ports | None = None,
        flags: Sequence[str] = (),
        ready_seconds: float = 60,
        installation: Installation | None = None,
    ) -> None:
        """Start the server and wait until its models are loaded.

        flags: further flags of tritonserver, such as --model-control-mode=explicit. Raises
        UserError, with the end of the log.
        """
        installation = installation or find()
        chosen = (ports or Ports()).chosen()
        self.http = f"http://{HOST}:{chosen.http}"
        self.grpc = f"{HOST}:{chosen.grpc}"
        self.metrics = f"http://{HOST}:{chosen.metrics}/metrics"
        self._scratch = tempfile.TemporaryDirectory(prefix="snapexport-triton-")
        self._log = Path(self._scratch.name) / "triton.log"
        self._shared_memory = f"snapexport-{secrets.token_hex(8)}-"
        self._command_line = self._command(installation, Path(repository), chosen, flags)
        self._environment = _environment(installation)
        has_metrics = "--allow-metrics=false" not in flags  # they come last
        self._signs = [f"{self.http}/v2/health/ready", *([self.metrics] if has_metrics else [])]
        self.start()
        try:
            end = time.monotonic() + ready_seconds
            while not self.is_ready():
                self.require_starting(end)
                time.sleep(0.05)
        except BaseException:
            self.stop(0)
            raise

    def start(self) -> None:
        """Start the process, at the same ports as before; a process of before must be gone."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command_line,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own: Ctrl-C is the caller's to pass on
            )

    def is_ready(self) -> bool:
        """Whether the models are loaded."""
        return all(map(answers, self._signs))

    def require_starting(self, end: float) -> None:
        """Raise UserError if the process has ended, or the time of time.monotonic() is over."""
        if not self.is_running:
            raise self._failed(f"Triton's server ended with status {self._process.returncode}")
        if time.monotonic() > end:
            raise self._failed("Triton's server was not ready in time")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives. Its models' processes may be dead."""
        return self._process.poll() is None

    def log(self, lines: int = _LOG_LINES) -> str:
        """The last lines of the server's log."""
        if not self._log.is_file():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def reasons(self) -> str:
        """The last lines of the log that may tell why the server failed."""
        reasons = [line for line in self.log(1000).splitlines() if not _ROUTINE.match(line)]
        return "\n".join(reasons[-_LOG_LINES:])

    def stop(self, seconds: float = EXIT_SECONDS + 3) -> None:
        """End the server: by SIGINT, and after `seconds` by SIGKILL. May be called twice.

        Close gRPC streams first: an open stream, even an idle one, holds its model, and the server
        does not end by itself even after its exit timeout.
        """
        if self.is_running and seconds > 0:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()
        self._scratch.cleanup()

    def kill(self) -> None:
        """End the server and its models' processes at once. `start` may follow."""
        with suppress(ProcessLookupError):  # the models' processes are of its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for region in _SHARED_MEMORY.glob(f"{self._shared_memory}*"):
            region.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(
        self, installation: Installation, repository: Path, ports: Ports, flags: Sequence[str]
    ) -> list[str]:
        backends = installation.backends(Path(self._scratch.name))
        return [
            *leash(),
            str(installation.binary),
            f"--model-repository={repository.absolute()}",
            *([f"--backend-directory={backends}"] if backends else []),
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory}",
            *(f"--{service}-address={HOST}" for service in ("http", "grpc", "metrics")),
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            f"--exit-timeout-secs={EXIT_SECONDS}",
            *flags,
        ]

    def _failed(self, what: str) -> UserError:
        return UserError(f"{what}:\n{self.reasons()}", "see the server's log above")


def _environment(installation: Installation) -> Mapping[str, str]:
    """Ours, with this interpreter first: the Python backend takes the python3 on PATH."""
    # Python's own would mislead the embedded interpreter.
    ours = ("PYTHONHOME", "PYTHONPATH")
    outside = {name: value for name, value in os.environ.items() if name not in ours}
    libraries = [*installation.library_path, outside.get("LD_LIBRARY_PATH", "")]
    return outside | {
        "PATH": f"{Path(sys.prefix) / 'bin'}:{outside.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
    }
