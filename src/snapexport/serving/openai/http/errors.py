"""Errors in OpenAI's form, a status and an object of four fields; exceptions become them here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from snapexport.errors import UserError
from snapexport.runtime.requests.prompts import PromptTooLongError, TextTooLongError
from snapexport.serving.worker import FailureCode, GenerationError

MOST_MESSAGE, MOST_PARAM = 600, 64
"""Characters of an error's texts. A client's value of a megabyte is not sent back to it."""

RETRY_AFTER = "1"
"""Seconds in the Retry-After header of every 503."""

HEADERS: Mapping[int, dict[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    503: {"Retry-After": RETRY_AFTER},
    # OpenAI's clients would send it again, and it would take as long again.
    504: {"X-Should-Retry": "false"},
}

CLIENT_GONE = 499
"""Status of an answer that its client did not wait for, as nginx logs it."""

INVALID, SERVER = "invalid_request_error", "server_error"
TOO_LONG = "context_length_exceeded"
UNSUPPORTED = "unsupported_parameter"

GENERATION: Mapping[FailureCode, tuple[int, str, str | None]] = {
    "full": (503, SERVER, "unavailable"),
    "stopping": (503, SERVER, "shutting_down"),
    "cancelled": (503, SERVER, "cancelled"),
    "deadline": (504, SERVER, "timeout"),
    "internal": (500, SERVER, None),
    "invalid": (400, INVALID, None),
}
"""Status, type and code of each failure."""


class ApiError(Exception):
    """An error that becomes an answer with `status` and `body`, or a stream's last event."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = SERVER,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "error": {
                "message": shorten(message, MOST_MESSAGE),
                "type": kind,
                "param": param and shorten(param, MOST_PARAM),
                "code": code,
            }
        }

    def with_fields(self, own: Mapping[str, str]) -> "ApiError":
        """The error of a body whose fields have other names. own: by those of the chat's."""
        about = self.body["error"]
        name = own.get((about["param"] or "").partition(".")[0])
        if name is None:
            return self
        message = about["message"].replace(about["param"], name)
        return ApiError(self.status, message, about["type"], name, about["code"])

    @property
    def headers(self) -> dict[str, str]:
        return HEADERS.get(self.status, {})


def shorten(text: str, most: int) -> str:
    """The text, or its beginning and end if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 3]}...{text[-end:]}"


def from_generation(error: GenerationError) -> ApiError:
    """The ApiError of a request that failed."""
    status, kind, code = GENERATION[error.code]
    return ApiError(status, str(error), kind, code=code)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request is invalid."""
    return ApiError(400, message, INVALID, param, code)


def too_long(most: int, has: str, param: str) -> ApiError:
    """A 400 whose text clients recognise, some by these very words."""
    context = f"this model's maximum context length is {most} tokens"
    return invalid(f"prompt is too long: {context}, and it has {has}", param, TOO_LONG)


@contextmanager
def client_errors(param: str) -> Iterator[None]:
    """Turn errors of the runtime's checks into a 400 that names the field `param`."""
    try:
        yield
    except PromptTooLongError as error:
        raise too_long(error.most, f"{error.tokens}", param) from None
    except TextTooLongError as error:
        raise too_long(error.most, f"over {error.most}: {error.message}", param) from None
    except UserError as error:
        raise invalid(f"{error.message}: {error.hint}", param) from None


def shutting_down() -> ApiError:
    """A 503: the server drains and takes no new request."""
    return ApiError(503, "the server is shutting down", code="shutting_down")


ANTHROPIC = "/v1/messages"
"""Routes whose errors have Anthropic's form."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


_DETAILS = {"thread": {"details": {"error_code": "thread_unsupported_request"}}}
"""By fields that are not supported. The SDK's tool runner then sends the whole history instead."""


def as_anthropic(error: ApiError) -> dict[str, Any]:
    """The error in Anthropic's form."""
    known = _ANTHROPIC_TYPES.get(error.status)
    kind = known or (INVALID if error.status < 500 else "api_error")
    about = error.body["error"]
    found = {"type": kind, "message": about["message"], **_DETAILS.get(about["param"], {})}
    return {"type": "error", "error": found}


def body_for(path: str, error: ApiError) -> dict[str, Any]:
    """The error in the form of the route's clients."""
    return as_anthropic(error) if path.startswith(ANTHROPIC) else error.body


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
