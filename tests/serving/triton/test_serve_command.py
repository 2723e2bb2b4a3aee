"""`snapexport serve --triton`: the command, and processes that die."""

import os
import signal
import time
from pathlib import Path

import openai
import pytest

from snapexport.serving.triton.behind import MOST_RESTARTS
from tests.serving.process import SECONDS, Serving, serve, start
from tests.serving.served_command import *  # noqa: F403
from tests.serving.served_command import LONG, refused


def test_backend_that_dies_is_started_again(build: Path, tmp_path: Path) -> None:
    """Requests of the dead process end with an error. Now and then the server dies with it."""
    with serve(build, tmp_path, "--triton") as serving:
        stream = serving.client().completions.create(**LONG)
        (backend,) = _children(_triton(serving), "/vault/1/model.py")
        os.kill(backend, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            list(stream)
        answers_again(serving)
        status, errors = serving.end()
    assert status == 0
    assert "starting it again (1 of 3)" in errors
    assert list(tmp_path.glob("snapexport-*")) == []


def test_server_that_dies_is_started_again_three_times(build: Path, tmp_path: Path) -> None:
    with serve(build, tmp_path, "--triton") as serving:
        for _ in range(MOST_RESTARTS):
            stream = serving.client().completions.create(**LONG)
            next(iter(stream))
            os.kill(_triton(serving), signal.SIGKILL)
            with pytest.raises(openai.APIError):
                list(stream)
            answers_again(serving)
        os.kill(_triton(serving), signal.SIGKILL)
        status, errors = serving.ended()
    assert status == 2
    assert "\nerror: the server has ended by itself; the end of" in errors
    assert "HTTPService" in errors and "\n\nhint: " in errors
    assert list(tmp_path.glob("snapexport-*")) == []


def answers_again(serving: Serving) -> None:
    """Wait until a request is answered; until then the others get status 503 or 500."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            serving.client().completions.create(**LONG | {"max_tokens": 1, "stream": False})
            return
        except openai.InternalServerError:
            assert time.monotonic() < end
            time.sleep(0.2)


def test_signal_before_the_server_is_ready_leaves_nothing(build: Path, tmp_path: Path) -> None:
    process = start(build, tmp_path, "--triton")
    while not any(log.stat().st_size for log in tmp_path.glob("snapexport-triton-*/triton.log")):
        assert process.poll() is None
    (server,) = _children(process.pid, "tritonserver")
    process.terminate()
    out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert not Path(f"/proc/{server}").exists()
    assert list(tmp_path.glob("snapexport-*")) == []


def test_repository_of_serve_is_kept_at_the_given_path(build: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with serve(build, tmp_path, "--triton", "--repository", str(kept)) as serving:
        assert serving.end()[0] == 0
    assert (kept / "vault/config.pbtxt").is_file()
    error = refused(build, tmp_path, "--triton", "--repository", str(kept))
    assert error == f"error: {kept} exists already\n\nhint: choose another --repository\n"


def _triton(serving: Serving) -> int:
    (server,) = _children(serving.process.pid, "tritonserver")
    return server


def _children(parent: int, text: str) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if text in Path(f"/proc/{pid}/cmdline").read_text()]
