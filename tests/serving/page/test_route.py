"""The page's answer: what a browser may do with it, and who gets it."""

import base64
import hashlib
import re
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from starlette.testclient import TestClient

from snapexport.cli.app import parser
from snapexport.serving.openai.api import Api
from snapexport.serving.openai.http.access import Access
from tests.serving.openai.conftest import Served

KEY = "sk-of-the-test"


def answer(served: Served, path: str = "/", **headers: str) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection(served.url.removeprefix("http://"))
    connection.request("GET", path, headers=headers)
    given = connection.getresponse()
    return given, given.read().decode()


def client(served: Served, **fields: Any) -> TestClient:
    api = Api(served.model, served.api.health, **fields)
    return TestClient(api.app(), raise_server_exceptions=False)


def test_page_may_run_its_own_script_and_ask_its_own_server_only(served: Served) -> None:
    given, page = answer(served)
    assert given.status == 200 and given.headers["content-type"] == "text/html; charset=utf-8"
    parts = given.headers["content-security-policy"].split("; ")
    policy = {name: value for name, _, value in (part.partition(" ") for part in parts)}
    script, style = (
        re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S) for tag in ("script", "style")
    )
    for (text,), name in ((script, "script-src"), (style, "style-src")):
        hashed = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(name) == f"'sha256-{hashed}'"
    nothing = ("default-src", "base-uri", "form-action", "frame-ancestors")
    assert policy == dict.fromkeys(nothing, "'none'") | {
        "connect-src": "'self'",
        "img-src": "data:",
    }
    assert given.headers["referrer-policy"] == "no-referrer"
    assert given.headers["x-content-type-options"] == "nosniff"


def test_page_is_one_document_without_another_address(served: Served) -> None:
    _, page = answer(served)
    assert "{{" not in page.replace("${{", "")
    assert re.findall(r"""(?:src|href)=["'](?!data:)|https?://|@import|url\(""", page) == []
    assert "innerHTML" not in page and " style=" not in page and "onclick" not in page


def test_other_hosts_get_no_page(served: Served) -> None:
    """A name that leads to this machine is not this server's."""
    guarded = client(served, access=Access(hosts=frozenset({"testserver"})))
    assert guarded.get("/").status_code == 200
    assert guarded.get("/", headers={"host": "evil.example"}).status_code == 403


def test_page_needs_no_key_but_everything_that_it_asks_does(served: Served) -> None:
    keyed = client(served, access=Access(api_key=KEY))
    assert keyed.get("/").status_code == 200 and KEY not in keyed.get("/").text
    for path in ("/v1/models", "/metrics", "/openapi.json", "/?", "/index.html"):
        assert keyed.get(path).status_code == (200 if path == "/?" else 401), path
    assert keyed.post("/", json={}).status_code == 405
    assert keyed.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200


def test_no_page_leaves_the_route_out(served: Served) -> None:
    arguments = parser(["serve"]).parse_args(["serve", "x.build", "--no-page"])
    assert arguments.page is False
    without = client(served, page=False)
    assert without.get("/").status_code == 404
    assert "/" not in without.get("/openapi.json").json()["paths"]
    assert "/" in client(served).get("/openapi.json").json()["paths"]
