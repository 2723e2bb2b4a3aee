"""A chat model that is served once for all clients, and nothing else for them to reach.

The clients have an environment of their own, without the server: `make test-clients` sets it up and
names the Python that has the server. Elsewhere nothing of this folder is collected.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("SNAPEXPORT_TEST_PYTHON")
MODEL = Path(os.environ.get("SNAPEXPORT_TEST_MODEL", ""))
MODEL_NAME = "model"
LENGTHS = ["--L-max", "4096", "--kv-budget", "1024", "--prefill-chunk", "256", "--batch", "4"]
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
OFFLINE = {
    "AUTOGEN_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""Clients look for news, prices and tokenizers elsewhere, or report to it, unless told not to."""

collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@dataclass(frozen=True)
class Target:
    """What a client is configured with. build: for clients that want the tokenizer."""

    url: str
    build: Path
    model: str = MODEL_NAME


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tools are in the chat template, by ours if the model's own has none."""
    if not MODEL.is_file():
        pytest.skip("the model is not there: `make real-model` says why it cannot be fetched")
    out = tmp_path_factory.mktemp("clients") / "model.build"
    command = ["-m", "snapexport", "build", "--model", str(MODEL), *LENGTHS, "--out", str(out)]
    subprocess.run([str(PYTHON), *command], check=True, capture_output=True, timeout=600)
    template = out / TEMPLATE.name
    if "tools" not in template.read_text():
        shutil.copyfile(TEMPLATE, template)
    return out


@pytest.fixture(scope="session")
def target(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    from tests.serving.process import serve

    # Few clients name a temperature, and at 0 the answers are the same in each run.
    flags = ("--name", MODEL_NAME, "--threads", "2", "--temperature", "0")
    with serve(build, tmp_path_factory.mktemp("scratch"), *flags) as serving:
        yield Target(serving.url, build)
        status, errors = serving.end()
        assert status == 0 and "Traceback" not in errors


@pytest.fixture(scope="session", autouse=True)
def environment(target: Target) -> Iterator[None]:
    """Clients' defaults lead to the server, and no name but loopback's is looked up."""
    patch = pytest.MonkeyPatch()
    look_up = socket.getaddrinfo

    def of_loopback(host: Any, *arguments: Any, **more: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", None):
            raise socket.gaierror(f"{host} is not on this machine")
        return look_up(host, *arguments, **more)

    patch.setattr(socket, "getaddrinfo", of_loopback)
    for name, value in OFFLINE.items():
        patch.setenv(name, value)
    patch.setenv("OPENAI_API_KEY", "none")
    patch.setenv("OPENAI_BASE_URL", f"{target.url}/v1")
    yield
    patch.undo()
