"""The server's process with our model: it starts, fails with a reason, and stops in time."""

import os
import secrets
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serving.triton.client import Client
from tests.serving.triton.server import EXIT_SECONDS, Server, ServerError

PREFIX = f"test-{os.getpid()}"


@pytest.fixture(autouse=True)
def known_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared-memory prefix that no other server of this machine has."""
    monkeypatch.setattr(secrets, "token_hex", lambda count: PREFIX)


def is_gone(group: int) -> bool:
    """Whether no process of a server lives; the killed ones take a moment to go."""
    end = time.monotonic() + 5
    while any(_lives(pid, group) for pid in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return not shared_memory()


def _lives(process: Path, group: int) -> bool:
    try:
        state, _, of_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return False
    return int(of_group) == group and state != "Z"


def shared_memory() -> list[Path]:
    return list(Path("/dev/shm").glob(f"snapexport-{PREFIX}*"))


def copied(repository: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repository, tmp_path / "repository", symlinks=True))


def test_stopped_server_leaves_no_process_and_no_shared_memory(repository: Path) -> None:
    with Server(repository) as server:
        assert server.is_running and shared_memory()
    assert not server.is_running and is_gone(server.pid)
    server.stop()


def test_server_with_running_streams_stops_in_time(repository: Path) -> None:
    with ExitStack() as stack, Server(repository) as server:
        client = Client(server, "vault")
        inputs = {"text_input": "The vault", "max_tokens": 2200, "ignore_eos": True}
        for _ in range(8):
            stack.enter_context(client.stream(**inputs)).next()
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < EXIT_SECONDS + 6 and is_gone(server.pid)


def test_killed_server_is_noticed_and_cleaned_up(repository: Path) -> None:
    with Server(repository) as server:
        os.kill(server.pid, 9)
        end = time.monotonic() + 10
        while server.is_running:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert "successfully loaded" in server.log(1000)
    assert is_gone(server.pid)


def test_a_model_that_cannot_be_loaded_is_an_error_with_its_reason(
    repository: Path, tmp_path: Path
) -> None:
    broken = copied(repository, tmp_path)
    config = broken / "vault/config.pbtxt"
    config.write_text(config.read_text().replace('"max_pending"', '"max_queue"', 1))
    with pytest.raises(ServerError, match="ended with status") as failed:
        Server(broken)
    assert "parameter max_queue '64': Extra inputs are not permitted" in str(failed.value)
    assert not shared_memory()


def test_server_that_is_not_ready_in_time_is_ended(repository: Path, tmp_path: Path) -> None:
    broken = copied(repository, tmp_path)
    (broken / "vault/1/model.py").unlink()
    began = time.monotonic()
    with pytest.raises(ServerError, match="was not ready in time"):
        Server(broken, ready_seconds=3)
    assert time.monotonic() - began < 15 and not shared_memory()
