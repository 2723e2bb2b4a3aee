"""The command: what it tells, how it ends, and what it says when it can't begin or go on."""

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.triton.serving import SECONDS, Serving, serve, start

LONG: dict[str, Any] = {
    "model": "vault",
    "prompt": "The old",
    "max_tokens": 1500,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}


def ending(seconds: float) -> str:
    return f"ending: running answers have {seconds:g} s to finish; a second signal does not wait\n"


def test_it_tells_a_line_that_works_and_drains(build: Path, tmp_path: Path) -> None:
    """SIGTERM: the stream that runs ends as it would have, and nothing new begins."""
    process = start(build, tmp_path)
    try:
        told = _told(process)
        curl = told.splitlines()[-1]
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, text=True)
        assert '"object":"text_completion"' in answer.stdout, answer.stderr
        url = curl.split()[1].removesuffix("/completions")
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        stream = client.completions.create(**LONG)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            while True:  # the signal is on its way
                client.completions.create(**LONG | {"max_tokens": 1, "stream": False})
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, ending(30))
        assert list(tmp_path.glob("snapexport-*")) == []
    finally:
        process.kill()


def test_a_drain_is_bounded(build: Path, tmp_path: Path) -> None:
    """SIGINT. The repository was to be kept, and is."""
    flags = "--drain-seconds", "0.1", "--repository", str(tmp_path / "kept")
    with serve(build, tmp_path, *flags) as serving:
        stream = serving.client().completions.create(**LONG)
        serving.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert serving.ended() == (0, ending(0.1))
    assert list(tmp_path.glob("snapexport-*")) == []
    assert (tmp_path / "kept/vault/config.pbtxt").is_file()


def test_a_backend_that_dies_ends_it(build: Path, tmp_path: Path) -> None:
    """What the dead process owed is told to have failed. Now and then the server dies with it."""
    with serve(build, tmp_path) as serving:
        stream = serving.client().completions.create(**LONG)
        (backend,) = _children(_triton(serving), "/vault/1/model.py")
        os.kill(backend, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            list(stream)
        status, errors = serving.ended()
    assert status == 2
    noticed = "error: the model no longer answers; ", "error: Triton's server has ended by itself; "
    assert errors.startswith(noticed)
    assert list(tmp_path.glob("snapexport-*")) == []


def test_a_server_that_dies_ends_it(build: Path, tmp_path: Path) -> None:
    with serve(build, tmp_path) as serving:
        os.kill(_triton(serving), signal.SIGKILL)
        status, errors = serving.ended()
    assert status == 2
    assert errors.startswith("error: Triton's server has ended by itself; the end of")
    assert "HTTPService" in errors and "\n\nhint: " in errors
    assert list(tmp_path.glob("snapexport-*")) == []


def test_a_signal_before_it_serves_leaves_nothing(build: Path, tmp_path: Path) -> None:
    process = start(build, tmp_path)
    while not any(log.stat().st_size for log in tmp_path.glob("snapexport-triton-*/triton.log")):
        assert process.poll() is None
    (server,) = _children(process.pid, "tritonserver")
    process.terminate()
    out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert not Path(f"/proc/{server}").exists()
    assert list(tmp_path.glob("snapexport-*")) == []


def test_a_port_in_use(build: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for flag in ("--port", "--grpc-port"):
            assert _refused(build, tmp_path, flag, port) == (
                f"error: {flag} {port} on 127.0.0.1: Address already in use\n\n"
                f"hint: choose another {flag}; 0: a free one\n"
            )


def test_a_repository_that_exists(build: Path, tmp_path: Path) -> None:
    told = _refused(build, tmp_path, "--repository", str(tmp_path))
    assert told == f"error: {tmp_path} exists already\n\nhint: choose another --repository\n"


def test_a_build_without_a_tokenizer(build: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    for file in build.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / "bare" / file.name).symlink_to(file.absolute())
    assert "bare has no tokenizer.json\n\nhint: copy" in _refused(tmp_path / "bare", tmp_path)


def _refused(build: Path, scratch: Path, *flags: str) -> str:
    process = start(build, scratch, *flags)
    out, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (2, "")
    return errors


def _told(process: "subprocess.Popen[str]") -> str:
    """What it prints, up to the line for a shell."""
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if line.startswith("curl "):
            return told
    raise AssertionError(process.communicate()[1])


def _triton(serving: Serving) -> int:
    (server,) = _children(serving.process.pid, "tritonserver")
    return server


def _children(parent: int, text: str) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if text in Path(f"/proc/{pid}/cmdline").read_text()]
