"""Who may send requests: hosts, content types, API keys, and the log of it."""

import asyncio
import json
import re
from http.client import HTTPConnection
from typing import Any

import pytest
from starlette.datastructures import Headers

from snapexport.serving.openai.http.access import Access, allowed_hosts, log_requests
from snapexport.serving.openai.http.errors import ApiError, invalid
from tests.serving.openai.conftest import Served
from tests.serving.process import SECONDS

KEY = "sk-of-the-test"
BODY = json.dumps({"model": "model", "prompt": "a", "max_tokens": 1}).encode()


def status(access: Access, method: str = "GET", path: str = "/v1/models", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    problem = access.problem(method, path, Headers(named))
    return problem.status if problem else 200


@pytest.mark.parametrize(
    ("address", "names", "host", "expected"),
    [
        ("127.0.0.1", [], "localhost:8000", 200),
        ("127.0.0.1", [], "LOCALHOST", 200),
        ("127.0.0.1", [], "127.0.0.1:8000", 200),
        ("127.0.0.1", [], "[::1]:8000", 200),
        ("127.0.0.7", [], "127.0.0.7:1", 200),
        ("127.0.0.1", [], "evil.example", 403),
        ("127.0.0.1", [], "localhost.evil.example", 403),
        ("127.0.0.1", [], "evil.example:127.0.0.1", 403),
        ("127.0.0.1", [], "", 403),
        ("127.0.0.1", ["Box.lan"], "box.lan:8000", 200),
        ("127.0.0.1", ["box.lan"], "other.lan", 403),
        ("127.0.0.1", ["*"], "evil.example", 200),
        ("0.0.0.0", [], "anything", 200),
        ("0.0.0.0", ["box.lan"], "anything", 403),
        ("0.0.0.0", ["box.lan"], "localhost", 200),
        ("::1", [], "[::1]:8000", 200),
        ("::1", [], "evil.example", 403),
    ],
)
def test_loopback_server_takes_only_loopback_names_and_those_allowed(
    address: str, names: list[str], host: str, expected: int
) -> None:
    assert status(Access(allowed_hosts(address, names)), host=host) == expected


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer  {KEY}", 200),
        (f"Basic {KEY}", 401),
        (KEY, 401),
        (f"Bearer {KEY}x", 401),
        (f"Bearer {KEY[:-1]}", 401),
        ("Bearer é", 401),
        ("Bearer", 401),
        ("", 401),
    ],
)
def test_api_key_is_needed_everywhere_but_for_health(authorization: str, expected: int) -> None:
    access = Access(api_key=KEY)
    for path in ("/v1/models", "/metrics", "/none", "/health/"):
        assert status(access, path=path, authorization=authorization) == expected
    assert status(access, path="/health", authorization=authorization) == 200


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=application/json", 415),
        ("", 415),
    ],
)
def test_body_must_be_sent_as_json(kind: str, expected: int) -> None:
    """A web page may send the others to any server without asking it."""
    assert status(Access(), "POST", content_type=kind) == expected


def test_refusal_is_openais_exception(served: Served) -> None:
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=SECONDS)
    connection.request("POST", "/v1/completions", BODY, {"Content-Type": "text/plain"})
    with connection.getresponse() as answer:
        assert answer.status == 415
        error = json.load(answer)["error"]
    assert error["type"] == "invalid_request_error"
    # The connection goes on: what is left of the body was read.
    connection.request("POST", "/v1/completions", BODY, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "m" * 1_000_000}),
        ("/v1/completions", {"model": "model", "prompt": "a", "x" * 1_000_000: 1}),
        ("/v1/completions", {"model": "model", "prompt": "a", "stop": ["a" * 1_000_000]}),
        ("/v1/chat/completions", {"model": "model", "messages": [{"role": "r" * 1_000_000}]}),
        (
            "/v1/chat/completions",
            {
                "model": "model",
                "messages": [{"role": "user", "content": "a"}],
                "k" * 1_000_000: {},
            },
        ),
    ],
)
def test_error_does_not_repeat_a_value_of_a_megabyte(served: Served, path: str, body: Any) -> None:
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=SECONDS)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    with connection.getresponse() as answer:
        assert answer.status in (400, 404)
        assert len(answer.read()) < 1000
    connection.close()


def test_shortened_message_keeps_its_beginning_and_end() -> None:
    error = invalid("begin" + "x" * 5000 + "end", "p" * 5000).body["error"]
    assert error["message"].startswith("begin") and error["message"].endswith("end")
    assert len(error["message"]) == 600 and len(error["param"]) == 64
    assert invalid("short", "p").body["error"]["message"] == "short"


@pytest.mark.parametrize("leaves", [False, True])
def test_each_request_is_one_line_of_the_log(leaves: bool) -> None:
    lines: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if leaves:
            raise ConnectionError
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"12345"})

    async def send(_: Any) -> None:
        pass

    scope = {"method": "POST", "path": '/a"\n\x1b[31m', "client": ("10.0.0.1", 5)}
    try:
        asyncio.run(log_requests(app, lines.append)(scope, send, send))  # type: ignore[arg-type]
    except ConnectionError:
        assert leaves
    (line,) = lines
    ending = "499 0 B" if leaves else "200 5 B"
    expected = rf'\S+ 10\.0\.0\.1:5 "POST /a\\"\\n\\u001b\[31m" {ending} \d+\.\d+ s'
    assert re.fullmatch(expected, line)


def test_api_key_does_not_show() -> None:
    assert KEY not in repr(Access(api_key=KEY))
    error = Access(api_key=KEY).problem("GET", "/v1/models", Headers({"authorization": "Bearer a"}))
    assert isinstance(error, ApiError) and KEY not in json.dumps(error.body)
    assert error.headers == {"WWW-Authenticate": "Bearer"}
