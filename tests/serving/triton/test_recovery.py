"""A model whose process was killed: a probe detects it, and it is loaded again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from snapexport import LLM, SamplingParams
from snapexport.serving.triton.liveness import is_alive, recover
from snapexport.serving.triton.server import Server
from tests.serving.triton.client import Client, HttpError
from tests.serving.triton.conftest import MAX_PENDING
from tests.serving.triton.processes import backend_of, state_of


@pytest.fixture
def explicit_client(repository: Path) -> Iterator[Client]:
    with Server(repository, flags=["--model-control-mode=explicit", "--load-model=*"]) as running:
        yield Client(running, "vault")


def command(client: Client, *flags: str) -> "subprocess.CompletedProcess[str]":
    module = [sys.executable, "-m", "snapexport.serving.triton.liveness"]
    call = [*module, client.server.http, client.name, "--seconds=3", *flags]
    return subprocess.run(call, capture_output=True, text=True, timeout=60)


def test_killed_backend_is_detected_and_recovered(explicit_client: Client, llm: LLM) -> None:
    assert is_alive(explicit_client.server.http, "vault")
    assert command(explicit_client).returncode == 0
    pid = backend_of(explicit_client.server, "vault")
    os.kill(pid, signal.SIGKILL)
    assert not is_alive(explicit_client.server.http, "vault", seconds=3)
    dead = command(explicit_client)
    assert (dead.returncode, dead.stdout) == (1, "vault: does not answer\n")
    assert recover(explicit_client.server.http, "vault")
    assert backend_of(explicit_client.server, "vault") != pid
    (expected,) = llm.generate("The vault", SamplingParams(max_tokens=20))
    inputs = {"text_input": "The vault", "max_tokens": 20}
    assert (
        explicit_client.generate(**inputs).text
        == explicit_client.infer(**inputs).text
        == expected.text
    )


def test_backend_killed_under_load_is_recovered(explicit_client: Client) -> None:
    long = {"text_input": "The vault", "max_tokens": 2200, "ignore_eos": True}
    with explicit_client.stream(**long) as one, explicit_client.stream(**long) as other:
        one.next()
        other.next()
        os.kill(backend_of(explicit_client.server, "vault"), signal.SIGKILL)
        time.sleep(0.5)
    alive = command(explicit_client, "--recover")
    assert (alive.returncode, alive.stdout) == (0, "vault: answers\n")


def test_unloading_lets_running_requests_finish(explicit_client: Client, llm: LLM) -> None:
    inputs = {"input_ids": [5] * 30, "max_tokens": 1500, "ignore_eos": True}
    (expected,) = llm.generate([5] * 30, SamplingParams(max_tokens=1500, ignore_eos=True))
    pid = backend_of(explicit_client.server, "vault")
    with explicit_client.stream(**inputs) as stream:
        replies = [stream.next()]
        explicit_client.post_raw("/v2/repository/models/vault/unload")
        replies += list(stream)
    assert tuple(i for reply in replies for i in reply.token_ids) == expected.token_ids
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, f"the model was not finalized: {state_of(pid)}"
        time.sleep(0.05)


def test_missing_model_is_not_alive(client: Client) -> None:
    assert not is_alive(client.server.http, "another")
    assert not is_alive("http://127.0.0.1:9", "vault", seconds=1)
    assert not recover(client.server.http, "vault"), "not without explicit model control"


def test_unary_model_recovers_although_it_waited_for_the_killed_backend(
    explicit_client: Client, llm: LLM
) -> None:
    """Keep this test last: its waiting requests go on with the recovered model."""
    long = {"text_input": "The vault", "max_tokens": 2200, "ignore_eos": True}
    inputs = {"text_input": "The vault", "max_tokens": 20}

    def wait_in_vain() -> None:
        with suppress(HttpError, OSError):
            explicit_client.infer(**long)

    for _ in range(MAX_PENDING):  # few do not make it deaf
        threading.Thread(target=wait_in_vain, daemon=True).start()
    time.sleep(1.5)
    assert explicit_client.metrics()["requests_waiting"] > 0
    os.kill(backend_of(explicit_client.server, "vault"), signal.SIGKILL)
    time.sleep(0.5)
    alive = command(explicit_client, "--recover")
    assert (alive.returncode, alive.stdout) == (0, "vault: answers\n")
    (expected,) = llm.generate("The vault", SamplingParams(max_tokens=20))
    assert (
        explicit_client.generate(**inputs).text
        == explicit_client.infer(**inputs).text
        == expected.text
    )
    assert explicit_client.infer_grpc(**inputs).text == expected.text
