"""Wraps the routes: turns errors into answers, and counts running requests."""

import asyncio
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from snapexport.serving.failures import GenerationError
from snapexport.serving.openai.errors import (
    CLIENT_GONE,
    INVALID,
    ApiError,
    body_for,
    from_generation,
    shutting_down,
)


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


def gated(app: ASGIApp, gate: Gate) -> ASGIApp:
    """Count a request until its answer or stream has been sent."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        gate.enter()
        try:
            await app(scope, receive, send)
        finally:
            gate.leave()

    return answer


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    allowed = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if request.method == "OPTIONS" and "Allow" in allowed:
        return Response(status_code=204, headers=allowed)
    api_error = _as_api_error(request, error)
    body = body_for(request.url.path, api_error)
    return JSONResponse(body, api_error.status, {**allowed, **api_error.headers})


def _as_api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case GenerationError():
            return from_generation(error)
        case HTTPException():  # no such route, or not with this method
            what = f"{request.method} {request.url.path}: {error.detail}"
            return ApiError(error.status_code, what, INVALID)
    return ApiError(500, "the server failed: see its log")  # which has the traceback


HANDLERS = dict.fromkeys(
    (ApiError, GenerationError, HTTPException, ClientDisconnect, Exception), _answer
)
