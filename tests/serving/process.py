"""`snapexport serve` as a process of its own, with nothing left behind."""

import json
import os
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

SECONDS = 300
"""Patience with a machine that is busy with other things: no test measures it."""
PYTHON = os.environ.get("SNAPEXPORT_TEST_PYTHON", sys.executable)
"""An environment of clients has no server."""
MODULE = "snapexport"
"""Tests plant faults by another one."""


@dataclass
class Serving:
    """A running command, and the addresses it printed. scratch: its folder of temporary files."""

    process: "subprocess.Popen[str]"
    scratch: Path
    addresses: dict[str, Any]

    @property
    def url(self) -> str:
        """The API without its version."""
        return str(self.addresses["openai"]).removesuffix("/v1")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.addresses["openai"], api_key="none", max_retries=0, timeout=SECONDS
        )

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; the exit status, and what was written to standard error."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors


@contextmanager
def serve(build: Path, scratch: Path, *flags: str) -> Iterator[Serving]:
    """Start it, and wait until it has printed its addresses."""
    process = start(build, scratch, "--json", *flags)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield Serving(process, scratch, json.loads(line))
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=SECONDS)


def start(build: Path, scratch: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [PYTHON, "-m", MODULE, "serve", str(build)]
    defaults = ["--port", "0", "--name", "vault", "--threads", "1"]
    return subprocess.Popen(
        [*command, *defaults, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )


def resident_bytes(pid: int) -> int:
    """Memory of a process, as `ps` shows it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def read_metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("snapexport_"):
            name, _, value = line.removeprefix("snapexport_").rpartition(" ")
            found[name.partition("{")[0]] = float(value)
    return found
