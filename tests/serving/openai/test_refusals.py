"""Refusals: OpenAI's status and error object, and so its client's exceptions."""

import gzip
import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import openai
import pytest

from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.requests import prompts
from snapexport.serving.worker import Failure, FailureCode
from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.conftest import Served
from tests.serving.process import SECONDS

CHAT: Any = [{"role": "user", "content": "Hello"}]


def chat(client: openai.OpenAI, **options: Any) -> None:
    client.chat.completions.create(
        **{"model": "model", "messages": CHAT, "max_tokens": 2} | options
    )


def complete(client: openai.OpenAI, **options: Any) -> None:
    client.completions.create(**{"model": "model", "prompt": "a", "max_tokens": 2} | options)


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"frequency_penalty": 2.5}, "frequency_penalty", "less than or equal to 2"),
        ({"presence_penalty": -3}, "presence_penalty", "greater than or equal to -2"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "names must be token ids"),
        ({"logit_bias": {"257": 1}}, "logit_bias", "257 is not a token"),
        ({"extra_body": {"min_tokens": 3}}, "min_tokens", "from 0 to max_tokens, 2"),
        (
            {"extra_body": {"repetition_penalty": 0}},
            "repetition_penalty",
            "greater than or equal to 0.001",
        ),
        ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids.0", "greater than or equal"),
        ({"extra_body": {"min_p": 1.1}}, "min_p", "less than or equal to 1"),
        ({"extra_body": {"temprature": 1}}, "temprature", "not supp.*did you mean temperature"),
        (
            {"n": 17, "extra_body": {"x": 1, "suffix": "a"}},
            "suffix",
            "suffix and x are not supported: leave them out; n: .*less than or equal to 16",
        ),
        ({"extra_body": {"echo": True}}, "echo", "not supported"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"seed": -2}, "seed", "greater than or equal to 0"),
        ({"max_tokens": 2.5}, "max_tokens", "valid integer"),
        (
            {"extra_body": {"continue_final_message": True}},
            "continue_final_message",
            "needs add_generation_prompt: false",
        ),
        ({"n": 17}, "n", "less than or equal to 16"),
        ({"n": True}, "n", "valid integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_completion_tokens": 3}, "max_tokens", "two names for one thing"),
        ({"stop": ["a"] * 65}, "stop", "at most 64"),
        ({"stop": ""}, "stop.0", "at least 1 character"),
        ({"stop": ["a", "b" * 1025]}, "stop.1", "at most 1024 characters"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role", "'user'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages.0.content",
            "a part of content must be",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        ({"tool_choice": "any"}, "tool_choice", "Input should be 'none', 'auto' or 'required'$"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "Field required",
        ),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            "response_format.schema",
            "not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages.0.content",
            "of type 'image_url' is not supported: the model reads only text",
        ),
        ({"messages": [{"role": "user", "content": "a" * 300}]}, "messages", "is 200 tokens"),
        (
            {"extra_body": {"chat_template_kwargs": {"repeats": "a"}}},
            "messages",
            "cannot be applied: TypeError",
        ),
        (
            {"extra_body": {"chat_template_kwargs": {"messages": []}}},
            "chat_template_kwargs",
            "'messages' cannot be an option",
        ),
    ],
)
def test_a_wrong_chat_is_refused_by_its_field(
    client: openai.OpenAI, options: Any, param: str, says: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        chat(client, **options)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"prompt": []}, "prompt", "give a text"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [1, "a"]}, "prompt", "give a text"),
        ({"prompt": [1, 257]}, "prompt", "257 is not a token"),
        ({"prompt": [["a"]]}, "prompt", "give a text"),
        ({"prompt": "a" * 201}, "prompt", "maximum context length is 200 tokens, and it has 201"),
        ({"prompt": ["a"] * 5, "n": 16}, "n", "64 answers"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"max_tokens": 0}, "max_tokens", "needs echo"),
        (
            {"max_tokens": 0, "echo": True, "logprobs": 1, "prompt": [5]},
            "prompt",
            "nothing to score",
        ),
    ],
)
def test_a_wrong_completion_is_refused_by_its_field(
    client: openai.OpenAI, options: Any, param: str, says: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        complete(client, **options)
    assert refused.value.param == param


def test_a_part_that_is_not_text_has_a_code(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}]
    with pytest.raises(openai.BadRequestError, match="'input_audio' is not supp") as refused:
        chat(client, messages=[{"role": "user", "content": parts}])
    assert refused.value.code == "unsupported_parameter"


def test_a_compressed_body_is_called_that(served: Served) -> None:
    body = gzip.compress(json.dumps({"model": "model", "prompt": "a"}).encode())
    assert "gzip" in refused(f"{served.url}/v1/completions", body, 400)["message"]
    encoded = {"Content-Encoding": "gzip"}
    assert "'gzip'" in refused(f"{served.url}/v1/completions", body, 415, encoded)["message"]


def test_a_prompt_that_is_too_long_has_openais_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, prompt="a" * 201)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_huge_prompt_is_refused_without_being_tokenized(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A megabyte takes seconds, and a hundred times its memory."""
    monkeypatch.setattr(served.llm, "tokenizer", None)
    text = "a" * (prompts.LEAST_BYTES + 1)
    with pytest.raises(openai.BadRequestError, match="65536 are read at the most") as refused:
        if kind == "chat":
            chat(client, messages=[{"role": "user", "content": text}])
        else:
            complete(client, prompt=text)
    assert refused.value.code == "context_length_exceeded"


def test_request_for_another_model_is_not_found(client: openai.OpenAI) -> None:
    for ask in (lambda: chat(client, model="gpt-4"), lambda: client.models.retrieve("gpt-4")):
        with pytest.raises(openai.NotFoundError, match="'gpt-4' is not served") as refused:
            ask()
        assert refused.value.code == "model_not_found"


def test_a_refusal_of_the_template_names_messages(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "{{ raise_exception('no ' + messages[0].role + ' here') }}"
    chats = ChatPrompts(byte_level(), ChatTemplate(source, {}))
    monkeypatch.setattr(served.model, "chat", chats)
    with pytest.raises(openai.BadRequestError, match="no user here") as refused:
        chat(client)
    assert refused.value.param == "messages"


def test_a_build_without_a_template_has_no_chat(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.model, "chat", None)
    with pytest.raises(openai.BadRequestError, match="no chat template") as refused:
        chat(client)
    assert refused.value.code == "no_chat_template"


@pytest.mark.parametrize(
    ("code", "status"),
    [("full", 503), ("stopping", 503), ("cancelled", 503), ("deadline", 504), ("internal", 500)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failure_of_a_request_has_its_status(
    served: Served,
    client: openai.OpenAI,
    monkeypatch: pytest.MonkeyPatch,
    code: FailureCode,
    status: int,
    stream: bool,
) -> None:
    """A stream too has a status before its first output."""
    failure = Failure("67 requests are running or waiting already", code)
    monkeypatch.setattr(served.model.streams.worker, "accept", lambda stream: failure)
    with pytest.raises(openai.InternalServerError, match="67 requests are running") as refused:
        chat(client, stream=stream)
    assert refused.value.status_code == status
    assert ("retry-after" in refused.value.response.headers) == (status == 503)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "more than"),
        (b'{"model": "model", "prompt": "a", "temperature": NaN}', "not JSON"),
        (b'{"model": "model", "prompt": "\\ud800"}', "not JSON"),
    ],
)
def test_a_body_that_is_not_an_object_is_refused(served: Served, body: bytes, says: str) -> None:
    assert says in refused(f"{served.url}/v1/completions", body, 400)["message"]


def test_unknown_route_and_method_have_openais_error_form(served: Served) -> None:
    assert "GET /v1/embeddings" in refused(f"{served.url}/v1/embeddings", None, 404)["message"]
    assert "Not Allowed" in refused(f"{served.url}/v1/completions", None, 405)["message"]


def test_a_body_over_the_limit_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapexport.serving.openai.bodies.parsing.MOST_BYTES", 1000)
    body = json.dumps({"model": "model", "prompt": "a" * 1000}).encode()
    assert "longer than 1000" in refused(f"{served.url}/v1/completions", body, 413)["message"]


def refused(
    url: str, body: bytes | None, status: int, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """The error object of an answer."""
    sent = {"Content-Type": "application/json"} | (headers or {})
    with pytest.raises(HTTPError) as error:
        urlopen(Request(url, body, sent), timeout=SECONDS)
    assert error.value.code == status
    error_object: dict[str, Any] = json.loads(error.value.read())["error"]
    assert error_object.keys() == {"message", "type", "param", "code"}
    return error_object
