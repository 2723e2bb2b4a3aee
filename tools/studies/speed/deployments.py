"""Starts a build's deployments on this machine: one process, or prefill and decode apart (Dynamo).

Both by the command line, in an interpreter of their own: one that has Dynamo. Counts the bytes that
decode workers have fetched, and the processors' seconds of all processes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from snapexport.errors import UserError

NAME = "bench"
STOP_SECONDS = 60
HINT = (
    "`make -f tools/studies/Makefile cluster` sets it up; give its interpreter: "
    "--dynamo-python .venv-dynamo/bin/python (docs/how-to/dynamo.md)"
)
_VERSIONS = """
import json
from importlib.metadata import version
from snapexport.errors import UserError
from snapexport.serving.dynamo.up import require_installed
try:
    require_installed()
except UserError as error:
    raise SystemExit(error.message)
print(json.dumps({name: version(name) for name in ("ai-dynamo-runtime", "nixl", "onnxruntime")}))
"""
_ADDRESS = re.compile(r"^ +(\S+) +(http\S+)$")
_COUNTED = re.compile(r"^snapexport_(row\w+)\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Deployment:
    """prefill, decode: workers. prefill 0: one process, with the runtime's own HTTP server."""

    prefill: int = 0
    decode: int = 1

    @property
    def name(self) -> str:
        return f"{self.prefill} + {self.decode}" if self.prefill else "one process"

    @property
    def workers(self) -> int:
        return self.prefill + self.decode

    def threads(self, of_all: int) -> int:
        """Of each worker: a share of all, and at least one."""
        return max(1, of_all // self.workers)

    def command(self, build: Path, threads: int) -> list[str]:
        """The module and its arguments. threads: of all workers together."""
        common = [str(build), "--port=0", f"--name={NAME}", f"--threads={self.threads(threads)}"]
        if not self.prefill:
            return ["snapexport", "serve", *common]
        roles = [f"--prefill={self.prefill}", f"--decode={self.decode}"]
        return ["snapexport", "dynamo", "up", *common, *roles]


@dataclass(frozen=True)
class Running:
    """A deployment that answers. addresses: by what it prints beside them."""

    pid: int
    addresses: Mapping[str, str]

    @property
    def openai(self) -> str:
        return self.addresses["OpenAI"]

    def moved(self) -> dict[str, float]:
        """What decode workers have fetched so far, by the metrics' names; the workers' sum."""
        total: dict[str, float] = {}
        for name, url in self.addresses.items():
            if name.startswith("decode-"):
                with urllib.request.urlopen(url, timeout=30) as answer:
                    for metric, value in _COUNTED.findall(answer.read().decode()):
                        total[metric] = total.get(metric, 0.0) + float(value)
        return total

    def cpu_seconds(self) -> float:
        """Processors' seconds of all its processes so far."""
        with suppress(FileNotFoundError):  # one has ended meanwhile
            return sum(map(_cpu_seconds, list(_tree(self.pid))))
        return 0.0


def dynamo_versions(python: Path) -> dict[str, str]:
    """Of Dynamo, NIXL and ONNX Runtime. Raises UserError unless an interpreter has them."""
    try:
        done = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"{python} does not start: {error.strerror}", HINT) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it ended"]
        raise UserError(f"{python} cannot run Dynamo's workers: {said[-1]}", HINT)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@contextmanager
def running(
    deployment: Deployment, build: Path, threads: int, python: Path | None = None
) -> Iterator[Running]:
    """Start a deployment, and end it with the block. Raises UserError if it does not start."""
    program = [str(python or sys.executable), "-m", *deployment.command(build.absolute(), threads)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*_leash(), *program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for us, and we end it
        )
        try:
            addresses = _addresses(process)
            if addresses is None:
                errors.seek(0)
                said = errors.read().strip().splitlines()[:15]
                raise UserError(
                    f"{deployment.name} did not start: " + "\n".join(said),
                    f"see what `{' '.join(program[1:])}` says",
                )
            yield Running(process.pid, addresses)
        finally:
            _stop(process)


def _addresses(process: "subprocess.Popen[str]") -> dict[str, str] | None:
    """Read what is printed once a request was answered, up to the line that calls curl."""
    assert process.stdout
    found = {}
    for line in process.stdout:
        if match := _ADDRESS.match(line.rstrip()):
            found[match[1]] = match[2]
        if line.startswith("curl "):
            return found
    return None


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()


def _leash() -> list[str]:
    """Ends the process with the thread that started it, where util-linux is there."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from _tree(int(child))


def _cpu_seconds(pid: int) -> float:
    """Of all threads, in user mode and in the kernel; proc(5), /proc/pid/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
