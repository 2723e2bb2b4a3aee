"""Headers of every answer: request ids, and what a browser needs for pages of other origins.

Knows no route.
"""

import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "x-request-id"
MOST_ID = 128
"""Characters of a client's own request id."""

METHODS = ("GET", "HEAD", "POST", "OPTIONS")


def identified(app: ASGIApp) -> ASGIApp:
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


def shared(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
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
