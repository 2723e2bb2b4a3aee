"""Options of `serve`, its addresses, and the files of a build that it reads."""

import json
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import MANIFEST
from snapexport.errors import UserError
from snapexport.serving.addresses import Addresses, url_of
from snapexport.serving.openai.http_server import bound
from snapexport.serving.openai.preprocess import Preprocessor
from snapexport.serving.options import ServeOptions
from snapexport.vault import CHECKPOINT


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 65536}, "--port 65536.*from 0"),
        ({"metrics_port": -1, "triton": True}, "--metrics-port -1"),
        ({"grpc_port": 8001}, "--grpc-port needs --triton.*add --triton"),
        ({"device": "cpu"}, "--device needs --triton.*use --backend"),
        ({"repository": Path("r")}, "--repository needs --triton"),
        ({"backend": "onnxruntime", "triton": True}, "--backend is not supported.*--device"),
        ({"request_seconds": 0}, "--request-seconds 0.*above 0"),
        ({"drain_seconds": -1}, "--drain-seconds -1"),
        ({"drain_seconds": float("nan")}, "--drain-seconds nan"),
        ({"max_pending": -1}, "--max-pending -1"),
        ({"api_key": ""}, "--api-key is empty.*long random one"),
        ({"api_key": "a b"}, "--api-key is empty, or has other"),
        ({"allowed_host": ("http://a",)}, "--allowed-host http://a is no host"),
        ({"name": "a b"}, "'a b' cannot be a model's name"),
    ],
)
def test_wrong_option_is_refused_by_its_flag(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        ServeOptions(Path("llama.build"), **given)


def test_api_key_does_not_show_in_the_options_text() -> None:
    assert "secret" not in repr(ServeOptions(Path("llama.build"), api_key="secret"))


def test_model_is_named_after_its_build() -> None:
    assert ServeOptions(Path("llama.build")).model_name == "llama"
    assert ServeOptions(Path("llama.build"), name="mine").model_name == "mine"


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")]
)
def test_url_is_one_that_a_local_client_reaches(host: str, url: str) -> None:
    with bound(host, 0, "--port") as listener:
        assert url_of(listener) == f"http://{url}:{listener.getsockname()[1]}"


def test_curl_line_is_quoted_for_a_shell() -> None:
    line = Addresses("a'b", "http://localhost:1/v1", "", "").curl
    curl, url, *_, body = shlex.split(line)
    assert (curl, url) == ("curl", "http://localhost:1/v1/completions")
    assert json.loads(body)["model"] == "a'b"
    assert " 'http://[::1]:1/v1/completions' " in Addresses("a", "http://[::1]:1/v1", "", "").curl


def test_port_in_use_and_foreign_address_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(UserError, match=r"already in use.*choose another --port"),
            bound("127.0.0.1", port, "--port"),
        ):
            pass
    with (
        pytest.raises(UserError, match=r"192\.0\.2\.1: .*an address of this machine"),
        bound("192.0.2.1", 0, "--port"),
    ):
        pass


def test_preprocessor_opens_a_build(tiny_build: Build, tmp_path: Path) -> None:
    """No more answers for one body than may run and wait; no chat without a template."""
    shutil.copy(tiny_build.directory / MANIFEST, tmp_path)
    shutil.copy(tiny_build.directory / f"{MANIFEST}.sha256", tmp_path)
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        Preprocessor.open(tmp_path, max_pending=3)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(CHECKPOINT / name, tmp_path)
    slots, longest = tiny_build.manifest.batch, tiny_build.manifest.geometry.L_max
    preprocessor = Preprocessor.open(tmp_path, max_pending=3)
    assert (preprocessor.most_answers, preprocessor.template) == (slots + 3, None)
    assert preprocessor.limits.longest_prompt == longest < preprocessor.limits.positions
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}")
    preprocessor = Preprocessor.open(tmp_path, max_pending=99)
    assert preprocessor.most_answers == 64
    assert preprocessor.template is not None and preprocessor.template.render([], True) == "<s>"
    preprocessor.close()
    for broken in ("{{ bos_token", "{{ bos_token | unheard_of }}"):
        (tmp_path / "chat_template.jinja").write_text(broken)
        with pytest.raises(UserError, match="the chat template cannot be read"):
            Preprocessor.open(tmp_path, max_pending=99)
