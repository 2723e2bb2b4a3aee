"""Errors in OpenAI's form: a status, and an object of four fields."""

from collections.abc import Mapping
from typing import Any

from snapexport.contract.errors import UserError
from snapexport.serving.generator import FailureCode, GenerationError

RETRY_AFTER = "1"
"""Seconds in the Retry-After header of every 503."""

INVALID, SERVER = "invalid_request_error", "server_error"

GENERATION: Mapping[FailureCode, tuple[int, str, str | None]] = {
    "invalid": (400, INVALID, None),
    "full": (503, SERVER, "unavailable"),
    "stopping": (503, SERVER, "shutting_down"),
    "unreachable": (503, SERVER, "unreachable"),
    "cancelled": (503, SERVER, "cancelled"),
    "deadline": (504, SERVER, "timeout"),
    "internal": (500, SERVER, None),
}
"""Status, type and code of each failure of a generator."""


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
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": RETRY_AFTER} if self.status == 503 else {}


def from_generation(error: GenerationError) -> ApiError:
    """The ApiError of a generator's failure."""
    status, kind, code = GENERATION[error.code]
    return ApiError(status, str(error), kind, code=code)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request is invalid."""
    return ApiError(400, message, INVALID, param, code)


def from_user_error(error: UserError, param: str | None = None) -> ApiError:
    """A 400 for an error of the runtime's checks."""
    return invalid(f"{error.message}: {error.hint}", param)


def shutting_down() -> ApiError:
    """A 503: the server drains and takes no new request."""
    return ApiError(503, "the server is shutting down", code="shutting_down")
