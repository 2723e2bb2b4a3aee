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
    from_generation,
    shutting_down,
)
from snapexport.serving.openai.streaming import ClientGoneError


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


class Gated:
    """Counts a request until its answer or stream has been sent."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._gate.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._gate.leave()


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _generation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GenerationError)
    return await _api_error(request, from_generation(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    return await _api_error(request, ApiError(error.status_code, what, INVALID))


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _server_error(request: Request, _: Exception) -> Response:
    """A 500. The traceback goes to the log, not to the client."""
    return await _api_error(request, ApiError(500, "the server failed: see its log"))


HANDLERS = {
    ApiError: _api_error,
    GenerationError: _generation_error,
    HTTPException: _http_error,
    ClientGoneError: _client_gone,
    ClientDisconnect: _client_gone,
    Exception: _server_error,
}
