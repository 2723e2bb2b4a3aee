"""Options of `serve`, its addresses, and the files of a build that it reads."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_prompts import open_template
from snapexport.serving.model import Model, require_tokenizer
from snapexport.serving.openai.bodies.completions import CompletionRequest
from snapexport.serving.openai.http.errors import ApiError
from snapexport.serving.openai.requests import completion
from snapexport.serving.options import ModelOptions, ServeOptions
from snapexport.serving.process import Addresses, url_of
from snapexport.serving.serve import bind
from tests.serving.openai.watched_llm import SLOTS, make_llm


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 65536}, "--port 65536.*from 0"),
        ({"max_num_batched_tokens": 0}, "--token-budget 0 is below 1"),
        ({"request_seconds": 0}, "--request-seconds 0.*above 0"),
        ({"drain_seconds": -1}, "--drain-seconds -1"),
        ({"drain_seconds": float("nan")}, "--drain-seconds nan"),
        ({"max_pending": -1}, "--max-pending -1"),
        ({"api_key": ""}, "--api-key is empty.*long random one"),
        ({"api_key": "a b"}, "--api-key is empty, or has spaces"),
        ({"allowed_host": ("http://a",)}, "--allowed-host http://a is not the name of a host"),
        ({"allowed_origin": ("localhost",)}, "--allowed-origin localhost is not an origin"),
        ({"allowed_origin": ("http://a/b",)}, "--allowed-origin http://a/b is not an origin"),
        ({"name": "a b"}, "'a b' cannot be a model's name"),
        ({"parked_dir": Path("a")}, "not supported without --parked-rows.*add --parked-rows 1"),
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
    with bind(host, 0) as listener:
        assert url_of(listener) == f"http://{url}:{listener.getsockname()[1]}"


def test_curl_line_is_quoted_for_a_shell() -> None:
    line = Addresses("a'b", "http://localhost:1/v1", "", "").curl
    curl, url, *_, body = shlex.split(line)
    assert (curl, url) == ("curl", "http://localhost:1/v1/completions")
    assert json.loads(body)["model"] == "a'b"
    assert " 'http://[::1]:1/v1/completions' " in Addresses("a", "http://[::1]:1/v1", "", "").curl


def test_foreign_address_is_refused() -> None:
    with (
        pytest.raises(UserError, match=r"192\.0\.2\.1: .*an address of this machine"),
        bind("192.0.2.1", 0),
    ):
        pass


def test_build_without_a_tokenizer_is_refused_by_dynamo_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no tokenizer\.json \(copy"):
        require_tokenizer(ModelOptions(tmp_path))


def test_directory_that_is_not_a_build_is_called_that(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a build directory"):
        require_tokenizer(ModelOptions(tmp_path / "none"))


@pytest.mark.parametrize("broken", ["{{ bos_token", "{{ bos_token | unheard_of }}"])
def test_broken_chat_template_is_refused_before_the_build_is_loaded(
    tmp_path: Path, broken: str
) -> None:
    (tmp_path / "chat_template.jinja").write_text(broken)
    with pytest.raises(UserError, match="the chat template cannot be read"):
        open_template(tmp_path)


def test_one_body_asks_for_no_more_answers_than_can_run_and_wait() -> None:
    model = Model("model", make_llm(), log=print, max_pending=2)
    body = CompletionRequest(model="model", prompt=["a"] * (SLOTS + 3))
    with pytest.raises(ApiError, match=f"{SLOTS + 2} answers"):
        completion(model, body)
    assert len(completion(model, body.model_copy(update={"prompt": ["a"]})).requests) == 1
