"""One request while the backend has it, and the two ways in which the worker speaks to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from snapexport.runtime.requests import FinishReason, OutputDelta, Request, TokenLogprobs
from snapexport.serving.triton.backend.question import Question
from snapexport.serving.triton.interface import Code


class Port(Protocol):
    """The way back to a request's client. Only the sender uses it, once a job is accepted."""

    def send(self, tensors: Mapping[str, NDArray[Any]], is_last: bool) -> None:
        """One response."""
        ...

    def fail(self, message: str, code: Code) -> None:
        """The last response: an error."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the client has gone, or taken its request back."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One response: what a request gained since the last. is_first: nothing was sent before."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    is_first: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """The last response of a request that did not come to its end."""

    message: str
    code: Code


@dataclass(eq=False, slots=True)
class Job:
    """A request that was accepted. Times are of time.monotonic().

    wanted: names of the outputs that the client asked for. deadline: when it gives up, if it does.
    """

    question: Question
    request: Request
    port: Port
    wanted: frozenset[str]
    arrived: float
    deadline: float | None
    request_id: int | None = None
    """The LLM's, once the worker has submitted it."""
    started: float | None = None
    """When it got a slot. None: it waits for one."""
    first_token: float | None = None
    tokens: int = 0
    ending: Failure | None = None
    """Why the worker has cancelled it, once it has."""
    closed: bool = False
    """The sender's: its last response is on its way."""
    _held: list[Answer] = field(default_factory=list)
    _answered: bool = False

    def take(self, delta: OutputDelta, now: float) -> Answer | None:
        """Take one delta in; what is to be sent now, if anything: all at the end, or each."""
        self.tokens += len(delta.token_ids)
        if self.tokens and self.first_token is None:
            self.first_token = now
        self._held.append(_answer(delta, is_first=not self._answered and not self._held))
        if not (self.question.stream or delta.finish_reason):
            return None
        answer = joined(self._held)
        self._answered = True
        self._held = []
        return answer


def joined(answers: Sequence[Answer]) -> Answer:
    """Several in a row as one."""
    return Answer(
        "".join(one.text for one in answers),
        tuple(token for one in answers for token in one.token_ids),
        tuple(logprobs for one in answers for logprobs in one.logprobs),
        answers[-1].finish_reason,
        answers[0].is_first,
    )


def _answer(delta: OutputDelta, is_first: bool) -> Answer:
    return Answer(delta.text, delta.token_ids, delta.logprobs, delta.finish_reason, is_first)
