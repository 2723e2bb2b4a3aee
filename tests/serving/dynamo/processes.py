"""A cluster of real processes that a test may kill, and the requests that go past the frontend."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

from openai import AsyncOpenAI, OpenAI

from snapexport import LLM
from snapexport.serving.dynamo import up
from snapexport.serving.options import ClusterOptions
from snapexport.serving.process import free_port
from snapexport.vault import make_prompt
from tests.patience import until
from tests.serving.process import SECONDS

NAME = "vault"


class Cluster:
    """Processes that end with the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port(up.HOST)
        self.members: dict[str, up.Member] = {}
        self._environment = up.environment_of(folder / "discovery") | {"TOKIO_WORKER_THREADS": "1"}

    def serve(
        self, build: Path, *, prefill: int, decode: int, migrations: int = 0, lease: float = 30
    ) -> None:
        """Start a frontend and workers, and wait for an answer."""
        self.frontend(build, migrations)
        for role, count in (("prefill", prefill), ("decode", decode)):
            for number in range(count):
                self.worker(build, role, f"{role}-{number}", lease)
        self.wait()

    def frontend(self, build: Path, migrations: int) -> None:
        options = ClusterOptions(build=build, name=NAME, migrations=migrations)
        self._start("frontend", up.frontend(options, self.port), self.port)

    def worker(self, build: Path, role: str, name: str, lease: float = 30) -> None:
        options = ClusterOptions(build=build, name=NAME, threads=1, lease_seconds=lease)
        self._start(name, up.worker(options, role))

    def _start(self, name: str, command: list[str], port: int | None = None) -> None:
        logs = self.folder
        self.members[name] = up.start(name, command, self._environment, logs, port)

    def wait(self) -> None:
        options = ClusterOptions(build=Path(NAME), name=NAME)
        up.wait(list(self.members.values()), options, self.port)

    def wait_for_workers(self) -> None:
        """The same without a request."""
        for member in self.members.values():
            until(lambda member=member: up.answers(member.health))

    def kill(self, name: str) -> None:
        """By SIGKILL."""
        member = self.members.pop(name)
        member.process.kill()
        member.process.wait()

    def metric(self, member: str, name: str) -> float:
        """A worker's metric without its labels."""
        url = self.members[member].health.removesuffix("health") + "metrics"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"snapexport_{name}{{"):
                    return float(line.rpartition(" ")[2])
        raise AssertionError(f"{member} has no metric {name}")

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=self._url, api_key="none", max_retries=0, timeout=SECONDS)

    @property
    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self._url, api_key="none", max_retries=0, timeout=SECONDS)

    @property
    def _url(self) -> str:
        return f"http://{up.HOST}:{self.port}/v1"

    def direct(self, component: str, request: dict[str, Any]) -> dict[str, Any]:
        """Ask a worker as the frontend does: {"chunks": [...]} or {"error": "..."}."""
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("direct.py"), component],
            input=json.dumps(request).encode(),
            env=self._environment,
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0]:
            for log in self.folder.glob("*.log"):
                print(log.name, log.read_text(errors="replace")[-2000:], sep="\n")
        up.stop(list(self.members.values()))


def ids_of(llm: LLM, seed: int, length: int = 900) -> list[int]:
    """A prompt's tokens, by its seed."""
    assert llm.tokenizer
    ids: list[int] = llm.tokenizer.encode(make_prompt(seed, length).text).ids
    return ids
