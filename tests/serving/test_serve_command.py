"""The command `snapexport serve`: its output, its end, and its refusals."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
import pytest

from snapexport.errors import UserError
from snapexport.serving.serve import bind
from tests.serving.process import SECONDS, serve, start

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {
    "model": "vault",
    "prompt": "The old",
    "max_tokens": 1500,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}


def said(seconds: float) -> str:
    """All that a server says of a build that was compared with nothing, which drains at its end."""
    return (
        f"draining: running answers have {seconds:g} s to finish; a second signal does not wait\n"
    )


BOUND = "memory: at most "


def after_memory(errors: str) -> str:
    """What a server says after its bound."""
    first, _, rest = errors.partition("\n")
    assert first.startswith(BOUND)
    return rest


def test_printed_curl_line_works_and_sigterm_drains(build: Path, tmp_path: Path) -> None:
    """The stream that runs ends as it would have, and nothing new begins."""
    process = start(build, tmp_path)
    try:
        curl = printed(process).splitlines()[-1]
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
        assert (process.returncode, after_memory(errors)) == (0, said(30))
        assert list(tmp_path.glob("snapexport-*")) == []
    finally:
        process.kill()


def test_drain_seconds_bound_the_drain(build: Path, tmp_path: Path) -> None:
    long = LONG | {"max_tokens": 30_000}
    with serve(build, tmp_path, "--drain-seconds", "0.1") as serving:
        assert serving.addresses.keys() == {"model", "openai", "health", "metrics", "page"}
        stream = serving.client().completions.create(**long)
        serving.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        status, errors = serving.ended()
        assert (status, after_memory(errors)) == (0, said(0.1))
    assert list(tmp_path.glob("snapexport-*")) == []


def test_second_signal_ends_it_within_seconds(build: Path, tmp_path: Path) -> None:
    with serve(build, tmp_path, "--drain-seconds", "600") as serving:
        stream = serving.client().completions.create(**LONG | {"max_tokens": 30_000})
        next(iter(stream))
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.stderr is not None
        assert serving.process.stderr.readline().startswith(BOUND)
        assert "draining" in serving.process.stderr.readline()
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.stderr.readline() == "ending running answers now\n"
        serving.ended()  # it would drain for longer than this waits


def test_api_key_and_hosts_are_checked_and_requests_logged(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAPEXPORT_API_KEY", "sk-test")
    options = {"model": "vault", "prompt": "The secret prompt", "max_tokens": 1}
    with serve(build, tmp_path, "--access-log") as serving:
        with pytest.raises(openai.AuthenticationError, match="API key is missing or wrong"):
            serving.client().completions.create(**options)
        known = serving.client().with_options(api_key="sk-test")
        known.completions.create(**options)
        with pytest.raises(openai.PermissionDeniedError, match="--allowed-host evil"):
            known.completions.create(**options, extra_headers={"Host": "evil.example"})
        with urlopen(f"{serving.url}/health", timeout=SECONDS) as answer:
            assert answer.status == 200
        _, log = serving.end()
    lines = [line for line in log.splitlines() if '"POST /v1/completions"' in line]
    assert [line.split('" ')[1].split()[0] for line in lines] == ["401", "200", "403"]
    assert '"GET /health" 200' in log and "secret" not in log and "sk-test" not in log


def test_port_in_use_is_refused(build: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        process = start(build, tmp_path, "--port", port)
        out, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (2, "")
    assert errors == (
        f"error: --port {port} on 127.0.0.1: Address already in use\n\n"
        "hint: choose another --port; 0: a free one\n"
    )


def test_a_host_of_another_machine_is_refused() -> None:
    told = pytest.raises(UserError, match=r"^--host 192\.0\.2\.1: .* \(use an address of this")
    with told, bind("192.0.2.1", 8000):
        pass


def test_serving_in_process_needs_no_triton_and_no_grpc() -> None:
    code = (
        "import sys\nimport snapexport.serving.serve\n"
        "print([name for name in ('tritonclient', 'grpc', 'torch', 'onnx') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def printed(process: "subprocess.Popen[str]") -> str:
    """Output of the command, up to its curl line."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("curl "):
            return text
    raise AssertionError(process.communicate()[1])
