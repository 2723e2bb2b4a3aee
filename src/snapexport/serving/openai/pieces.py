"""What an answer is made of, and who brings it. Knows neither Triton nor OpenAI's shapes."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from snapexport.runtime.requests import Request


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A token's own text, and its natural log probability."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Chosen(Likelihood):
    """A generated token, and the likeliest ones in its place, best first."""

    top: tuple[Likelihood, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one answer at a time. The last one, and no other, has a finish_reason.

    Its text may be that of earlier tokens, or none: text is held back while it may still become
    part of a stop string, tokens are not.
    """

    text: str
    tokens: int
    finish_reason: str | None = None
    logprobs: tuple[Chosen, ...] = ()


@dataclass(slots=True)
class Answer:
    """One answer, grown from its pieces."""

    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    logprobs: list[Chosen] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Take one piece in."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.finish_reason = piece.finish_reason
        self.logprobs += piece.logprobs


class Generator(Protocol):
    """Continues prompts. Leaving a stream early, by `aclose`, cancels its request."""

    def stream(self, request: Request) -> AsyncGenerator[Piece]:
        """The pieces of one answer. Raises ApiError."""
        ...
