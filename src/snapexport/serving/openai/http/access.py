"""Decides by their headers which requests may enter; counts them, logs them, and names them by ids.

A web page can make its reader's browser send requests to a server on the reader's own machine. It
can neither set `Content-Type: application/json` unasked nor choose the header Host, so both are
checked. Knows no routes but those that need no key.
"""

import asyncio
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from snapexport.serving.openai.http.errors import (
    CLIENT_GONE,
    INVALID,
    ApiError,
    body_for,
    shutting_down,
)

FREE = "/health"
"""For load balancers, which have no key. It shows only whether the model answers."""
PAGE = "/"
"""For browsers, which send no key unasked: the page asks for it, and has nothing of the model."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANY = "*"

MOST_LOGGED = 200
"""Characters of a path in the log."""


def allowed_hosts(address: str, names: Sequence[str]) -> frozenset[str] | None:
    """Values of the header Host for a server that listens on `address`. None: any.

    Without names a server is restricted only if it listens on a loopback address.
    """
    local = ipaddress.ip_address(address)
    if ANY in names or not (names or local.is_loopback):
        return None
    own = f"[{local}]" if local.version == 6 else str(local)
    return LOOPBACK | {own} | {name.lower() for name in names}


@dataclass(frozen=True)
class Access:
    """hosts None: any. api_key None: none is needed. log None: no log.

    origins: those whose pages a browser may give the answers.
    """

    hosts: frozenset[str] | None = None
    api_key: str | None = field(default=None, repr=False)
    log: Callable[[str], None] | None = None
    origins: Sequence[str] = ()

    def guard(self, app: ASGIApp) -> ASGIApp:
        """The application with these checks before it, and the log before both."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            """Refuse before any of the body is read."""
            error = self.problem(scope["method"], scope["path"], Headers(scope=scope))
            if error:
                body = body_for(scope["path"], error)
                await JSONResponse(body, error.status, error.headers)(scope, receive, send)
            else:
                await app(scope, receive, send)

        # A browser asks whether it may send a request without the key of the request.
        answering = name_requests(share_with(answer, self.origins))
        return log_requests(answering, self.log) if self.log else answering

    def problem(self, method: str, path: str, headers: Headers) -> ApiError | None:
        """The reason to refuse a request."""
        if self.hosts is not None and (host := _host(headers.get("host", ""))) not in self.hosts:
            way = f"`--allowed-host {host}` would allow it" if host else "send the header Host"
            message = f"the host '{host}' is not served: {way}"
            return ApiError(403, message, INVALID, code="host_not_allowed")
        if path not in (FREE, PAGE) and not self._has_key(headers):
            message = "the API key is missing or wrong: send `Authorization: Bearer KEY`"
            return ApiError(401, message, INVALID, code="invalid_api_key")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            message = f"the body is '{kind}': send `Content-Type: application/json`"
            return ApiError(415, message, INVALID)
        if (coding := headers.get("content-encoding", "identity").strip().lower()) != "identity":
            return ApiError(415, f"the body is '{coding}': send it without compression", INVALID)
        return None

    def _has_key(self, headers: Headers) -> bool:
        """Anthropic's clients send the key in a header of its own."""
        if self.api_key is None or self._is_key(headers.get("x-api-key", "")):
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return self._is_key(given) and scheme.lower() == "bearer"

    def _is_key(self, given: str) -> bool:
        assert self.api_key is not None
        # Starlette reads headers as Latin-1.
        return hmac.compare_digest(given.strip().encode("latin-1"), self.api_key.encode())


def _host(header: str) -> str:
    """The name or address of a header Host, without its port."""
    name, colon, port = header.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else header.strip().lower()


def log_requests(app: ASGIApp, log: Callable[[str], None]) -> ASGIApp:
    """Log one line for each request, at its end: nothing of its body or its answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        started, status, size = time.monotonic(), CLIENT_GONE, 0

        async def noting(message: Message) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, noting)
        finally:
            log(_line(scope, status, size, time.monotonic() - started))

    return answer


def _line(scope: Scope, status: int, size: int, seconds: float) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    client = scope.get("client") or ("-", 0)
    # As JSON: a path may have quotes, and must not end the line.
    line = json.dumps(f"{scope['method']} {scope['path']}"[:MOST_LOGGED])
    return f"{now} {client[0]}:{client[1]} {line} {status} {size} B {seconds:.3f} s"


class Gate:
    """Counts the requests in work, for which a drain waits."""

    def __init__(self) -> None:
        self.inside = 0
        self.closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        """Count a request in. Raises ApiError once the gate is closed."""
        if self.closed:
            raise shutting_down()
        self.inside += 1
        self._empty.clear()

    def leave(self) -> None:
        """Count a request out."""
        self.inside -= 1
        if not self.inside:
            self._empty.set()

    async def empties(self, seconds: float) -> None:
        """Wait for all requests to leave, but no longer than `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), seconds)


def count_requests(app: ASGIApp, gate: Gate) -> ASGIApp:
    """Count a request until its answer or stream has been sent."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        gate.enter()
        try:
            await app(scope, receive, send)
        finally:
            gate.leave()

    return answer


REQUEST_ID = "x-request-id"
MOST_ID = 128
"""Characters of a client's own request id."""

METHODS = ("GET", "HEAD", "POST", "OPTIONS")


def name_requests(app: ASGIApp) -> ASGIApp:
    """Send each request's id with its answer: the client's own, or a new one."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _own_id(Headers(scope=scope)) or f"req_{secrets.token_hex(16)}"

        async def naming(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await app(scope, receive, naming)

    return answer


def _own_id(headers: Headers) -> str | None:
    given = headers.get(REQUEST_ID, "")
    return given if len(given) <= MOST_ID and given.isascii() and given.isprintable() else None


def share_with(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let browsers hand the answers to pages of these origins; *: of any."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=["*"],
        expose_headers=[REQUEST_ID, "retry-after"],
    )
