"""What goes wrong, in OpenAI's words: a status, and an error object of four fields."""

from typing import Any

from snapexport.contract.errors import UserError

RETRY_AFTER = "1"
"""Seconds, in the header of an answer that is worth another try."""

UNAVAILABLE = "unavailable"
"""Code of an error: the model itself says that all slots are taken, and its queue is full."""


class ApiError(Exception):
    """Becomes an answer with `status` and `body`, or the last event of a stream."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "server_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": RETRY_AFTER} if self.status == 503 else {}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request is wrong, and would be wrong again."""
    return ApiError(400, message, "invalid_request_error", param, code)


def from_user_error(error: UserError, param: str | None = None) -> ApiError:
    """The same for what the runtime's own checks refuse."""
    return invalid(f"{error.message}: {error.hint}", param)


def unknown_model(asked: str, served: str) -> ApiError:
    """Another model than the one that is served here."""
    message = f"the model '{asked}' is not served here, '{served}' is"
    return ApiError(404, message, "invalid_request_error", "model", "model_not_found")


def leaving() -> ApiError:
    """The server drains: what runs may finish, what comes may not begin."""
    return ApiError(503, "the server is shutting down", code="shutting_down")
