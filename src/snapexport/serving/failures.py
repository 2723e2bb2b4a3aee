"""The reasons why a request is refused or ends early, for every server."""

from dataclasses import dataclass
from typing import Literal

from snapexport.errors import UserError

FailureCode = Literal["full", "stopping", "cancelled", "deadline", "internal", "invalid"]
"""full: all batch slots and places in the queue are taken. invalid: the request itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request was refused or ended early."""

    message: str
    code: FailureCode


class GenerationError(Exception):
    """A failure, as the stream of its request raises it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.code = failure.code


CANCELLED = Failure("the request was cancelled by its client", "cancelled")
STOPPING = Failure("the server is shutting down", "stopping")
NOT_FINITE = Failure(
    "the model's logits are not finite (a build in 16 bits may need --dtype fp32)", "internal"
)


def full(room: int) -> Failure:
    """room: requests that can run and wait at once."""
    return Failure(f"{room} requests run and wait already: try again later", "full")


def late(seconds: float) -> Failure:
    """seconds: the time that the request had."""
    return Failure(f"deadline exceeded: the answer took longer than {seconds:g} s", "deadline")


def internal(error: Exception) -> Failure:
    """The failure of a request that an exception of the runtime ended."""
    if isinstance(error, UserError):
        return Failure(str(error), "invalid")
    return Failure(f"the runtime failed: {type(error).__name__}: {error}", "internal")
