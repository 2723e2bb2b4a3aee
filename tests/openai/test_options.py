"""What the command is told and tells, and the files of a build that it reads."""

import json
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import MANIFEST
from snapexport.serving.openai.addresses import Addresses, url_of
from snapexport.serving.openai.listener import bound
from snapexport.serving.openai.options import ServeOptions
from snapexport.serving.openai.reader import Reader
from snapexport.vault import CHECKPOINT


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 65536}, "--port 65536.*from 0"),
        ({"metrics_port": -1}, "--metrics-port -1"),
        ({"request_seconds": 0}, "--request-seconds 0.*above 0"),
        ({"drain_seconds": -1}, "--drain-seconds -1"),
        ({"drain_seconds": float("nan")}, "--drain-seconds nan"),
        ({"max_pending": -1}, "--max-pending -1"),
        ({"name": "a b"}, "'a b' cannot be a model's name"),
    ],
)
def test_wrong_options(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        ServeOptions(Path("llama.build"), **given)


def test_the_repository_gets_its_options() -> None:
    options = ServeOptions(Path("llama.build"), max_pending=3, threads=2).for_repository(Path("r"))
    assert (options.build, options.out) == (Path("llama.build"), Path("r"))
    assert (options.model_name, options.max_pending, options.threads) == ("llama", 3, 2)


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")]
)
def test_an_address_is_told_as_a_client_needs_it(host: str, url: str) -> None:
    with bound(host, 0, "--port") as listener:
        assert url_of(listener) == f"http://{url}:{listener.getsockname()[1]}/v1"


def test_the_line_for_a_shell() -> None:
    line = Addresses("a'b", "http://localhost:1/v1", "", "", "").curl
    curl, url, *_, body = shlex.split(line)
    assert (curl, url) == ("curl", "http://localhost:1/v1/completions")
    assert json.loads(body)["model"] == "a'b"
    assert (
        " 'http://[::1]:1/v1/completions' " in Addresses("a", "http://[::1]:1/v1", "", "", "").curl
    )


def test_an_address_that_cannot_be_had() -> None:
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


def test_a_build_is_read(tiny_build: Build, tmp_path: Path) -> None:
    """No more answers for one body than may run and wait; no chat without a template."""
    shutil.copy(tiny_build.directory / MANIFEST, tmp_path)
    shutil.copy(tiny_build.directory / f"{MANIFEST}.sha256", tmp_path)
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        Reader.open(tmp_path, max_pending=3)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(CHECKPOINT / name, tmp_path)
    slots, longest = tiny_build.manifest.batch, tiny_build.manifest.geometry.L_max
    reader = Reader.open(tmp_path, max_pending=3)
    assert (reader.most_answers, reader.template) == (slots + 3, None)
    assert reader.limits.longest_prompt == longest < reader.limits.positions
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}")
    reader = Reader.open(tmp_path, max_pending=99)
    assert reader.most_answers == 64
    assert reader.template is not None and reader.template.render([], True) == "<s>"
    for broken in ("{{ bos_token", "{{ bos_token | unheard_of }}"):
        (tmp_path / "chat_template.jinja").write_text(broken)
        with pytest.raises(UserError, match="the chat template cannot be read"):
            Reader.open(tmp_path, max_pending=99)
