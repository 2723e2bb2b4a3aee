"""Headers of every answer, and methods beside those that a route was made for."""

import asyncio
import json
import socket
from dataclasses import dataclass
from http.client import HTTPConnection

import openai
import pytest

from snapexport.serving.openai.api import Api
from snapexport.serving.openai.http.access import Access
from snapexport.serving.serve import listening
from snapexport.serving.worker import Failure
from tests.serving.openai.conftest import Served
from tests.serving.process import SECONDS

ORIGIN = "http://localhost:3000"


@dataclass
class Answer:
    """Headers have lower case."""

    status_code: int
    headers: dict[str, str]
    body: bytes


def asked(
    served: Served, method: str, path: str, access: Access | None = None, **headers: str
) -> Answer:
    """The answer of an API of its own over the same model."""
    api = Api(served.model, served.api.health, access=access or Access())
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run_coroutine_threadsafe(_ask(api, method, path, named), served.loop).result(
        SECONDS
    )


async def _ask(api: Api, method: str, path: str, headers: dict[str, str]) -> Answer:
    listener = socket.create_server(("127.0.0.1", 0))
    async with listening(api, listener):
        port = listener.getsockname()[1]
        return await asyncio.to_thread(_exchange, port, method, path, headers)


def _exchange(port: int, method: str, path: str, headers: dict[str, str]) -> Answer:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    named = {name.lower(): value for name, value in answer.getheaders()}
    got = Answer(answer.status, named, answer.read())
    connection.close()
    return got


def test_page_of_an_allowed_origin_may_send_a_chat(served: Served) -> None:
    """The browser asks first, and without the API key."""
    access = Access(api_key="key", origins=(ORIGIN,))
    preflight = {
        "origin": ORIGIN,
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization, content-type, x-stainless-lang",
    }
    answer = asked(served, "OPTIONS", "/v1/chat/completions", access, **preflight)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    refused = asked(served, "GET", "/v1/models", access, origin=ORIGIN)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)


@pytest.mark.parametrize("origins", [(), (ORIGIN,)])
def test_page_of_another_origin_gets_no_leave(served: Served, origins: tuple[str, ...]) -> None:
    answer = asked(
        served, "GET", "/v1/models", Access(origins=origins), origin="http://evil.example"
    )
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("sent", "is_kept"), [("req-7", True), ("a" * 129, False), ("", False), ("é", False)]
)
def test_request_id_is_the_clients_or_a_new_one(served: Served, sent: str, is_kept: bool) -> None:
    for path in ("/health", "/none"):
        header = {"x_request_id": sent} if sent.isascii() else {}
        answer = asked(served, "GET", path, **header)
        got = answer.headers["x-request-id"]
        assert got == sent if is_kept else got.startswith("req_")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/v1/models", 204),
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/metrics", 200),
    ],
)
def test_other_methods_say_what_is_allowed(
    served: Served, method: str, path: str, status: int
) -> None:
    answer = asked(served, method, path)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.headers["allow"].split(", ")) <= {"GET", "HEAD", "POST"}


def test_answer_that_took_too_long_is_not_sent_for_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's client would take the slot three times."""
    came: list[object] = []

    def refuse(stream: object) -> Failure:
        came.append(stream)
        return Failure("late", "deadline")

    monkeypatch.setattr(served.model.streams.worker, "accept", refuse)
    with pytest.raises(openai.InternalServerError, match="late"):
        served.client(retries=2).completions.create(model="model", prompt="a")
    assert len(came) == 1


def test_models_are_not_listed_while_the_server_drains(served: Served) -> None:
    api = Api(served.model, served.api.health)
    api.gate.closed = True
    asking = _ask(api, "GET", "/v1/models", {})
    answer = asyncio.run_coroutine_threadsafe(asking, served.loop).result(SECONDS)
    code = json.loads(answer.body)["error"]["code"]
    assert (answer.status_code, code) == (503, "shutting_down")


def test_model_says_the_longest_prompt(client: openai.OpenAI) -> None:
    assert client.models.retrieve("model").model_dump()["max_model_len"] == 200
