"""What stands around the routes: errors become answers, and a request holds a place at the gate."""

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from snapexport.serving.openai.connection import GoneError
from snapexport.serving.openai.errors import ApiError
from snapexport.serving.openai.gate import Gate

CLIENT_GONE = 499


class Gated:
    """Holds a place at the gate for as long as a request is answered, its stream included."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._gate.enter():
            await self._app(scope, receive, send)


async def _tell(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _tell_http(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    return await _tell(request, ApiError(error.status_code, what, "invalid_request_error"))


async def _tell_nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _tell_failure(request: Request, _: Exception) -> Response:
    """Ours, and not to be told in detail: the traceback goes to the log."""
    return await _tell(request, ApiError(500, "the server failed: see its log"))


HANDLERS = {
    ApiError: _tell,
    HTTPException: _tell_http,
    GoneError: _tell_nobody,
    ClientDisconnect: _tell_nobody,
    Exception: _tell_failure,
}
