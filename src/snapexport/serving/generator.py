"""The protocol between a server's front and the part that continues prompts.

Knows no HTTP, no thread and no Triton. `in_process.InProcessGenerator` and
`triton.client.TritonGenerator` implement it.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from snapexport.runtime.requests.request import OutputDelta, Request

FailureCode = Literal[
    "invalid", "full", "stopping", "unreachable", "cancelled", "deadline", "internal"
]
"""full: all batch slots and places in the queue are taken. unreachable: Triton does not answer."""


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


class Generator(Protocol):
    """Continues prompts, for the event loop that it was made in."""

    last_output: float
    """Time of the last output of any request, by time.monotonic(). -inf: none yet."""

    def stream(self, request: Request) -> AsyncGenerator[OutputDelta]:
        """Yield the request's outputs. Only the last one has a finish_reason.

        Closing the stream early, by `aclose`, cancels the request. Raises GenerationError.
        """

    async def metrics(self) -> bytes:
        """Metrics in Prometheus' text form. Raises GenerationError."""

    async def close(self) -> None:
        """End all running requests; their streams raise GenerationError."""


def joined(deltas: Sequence[OutputDelta]) -> OutputDelta:
    """Join consecutive deltas of one request into one."""
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    return OutputDelta(
        last.request_id,
        "".join(delta.text for delta in deltas),
        tuple(token for delta in deltas for token in delta.token_ids),
        last.finish_reason,
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        row=last.row,
        cached_tokens=sum(delta.cached_tokens for delta in deltas),
        drafted=sum(delta.drafted for delta in deltas),
        accepted=sum(delta.accepted for delta in deltas),
    )
