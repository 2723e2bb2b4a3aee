"""Defines what writes an answer in a client's form, and splits outputs into the parts of an answer.

The parts are content, reasoning, and numbered tool calls in pieces. Knows no HTTP.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from snapexport.runtime.chat.parsers.parser import (
    Call,
    CallArguments,
    CallBegun,
    CallEnded,
    CallEvent,
    Content,
    Event,
    Reasoning,
)
from snapexport.runtime.chat.parsers.table import Reading
from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.openai.http.errors import ApiError

Object = dict[str, Any]


class Usage:
    """Tokens of prompts and answers. A prompt with n answers counts once."""

    def __init__(self, prompt_tokens: int, answers_each: int) -> None:
        """prompt_tokens: of all prompts. answers_each: n, the answers of each prompt."""
        self.prompt, self.completion, self.cached = prompt_tokens, 0, 0
        self._answers_each = answers_each

    def add(self, index: int, output: OutputDelta) -> None:
        """Count an output of the answer `index`."""
        self.completion += len(output.token_ids)
        if index % self._answers_each == 0:
            self.cached += output.cached_tokens

    def as_json(self) -> Object:
        """`usage` of chats and completions. cached_tokens: those that parked rows
        or the prompt cache on disk held.
        """
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Writer(ABC):
    """Writes the objects of one HTTP request.

    names_events: whether an event of the stream has its object's `type` as its name. last: what
    ends a stream that did not fail.
    """

    names_events = False
    last = b""

    @abstractmethod
    def whole(self, answers: Sequence[OutputDelta]) -> Object:
        """The object of an answer that is not streamed."""

    @abstractmethod
    def chunks(self, index: int, output: OutputDelta) -> list[Object]:
        """The chunks of one output."""

    @abstractmethod
    def last_chunks(self) -> list[Object]:
        """The chunks after the last output."""

    @abstractmethod
    def fail(self, error: ApiError) -> list[Object]:
        """The chunks that end a stream in place of the last ones."""


@dataclass(frozen=True, slots=True)
class CallHead:
    """The beginning of a call, with its number and a fresh id."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call; missing if the answer ended within it. is_valid: of its arguments."""

    index: int
    is_valid: bool


CallPart = CallHead | CallPiece | CallEnd
Part = Content | Reasoning | CallPart


class Answer:
    """Reads the outputs of one answer."""

    def __init__(self, reading: Reading) -> None:
        self._parser, self._reading = reading.parser(), reading
        self._calls = self._valid_calls = 0

    def parts(self, output: OutputDelta) -> list[Part]:
        """The parts that an output adds."""
        events = list(self._parser.push(output.text))
        if output.finish_reason:
            events += self._parser.finish()
        return list(self._number(events))

    def finish_reason(self, output: OutputDelta) -> str | None:
        """OpenAI's, after the output's parts were read."""
        ended = output.finish_reason
        return "tool_calls" if self._valid_calls and ended == "stop" else ended

    def _number(self, events: Iterable[Event]) -> Iterable[Part]:
        for event in events:
            if isinstance(event, Content | Reasoning):
                yield event
                continue
            for piece in _pieces(event):
                part = self._part(piece)
                if self._reading.parallel or part.index == 0:
                    yield part

    def _part(self, event: CallBegun | CallArguments | CallEnded) -> CallPart:
        if isinstance(event, CallBegun):
            self._calls += 1
            return CallHead(self._calls - 1, self._reading.new_id(), event.name)
        if isinstance(event, CallArguments):
            return CallPiece(self._calls - 1, event.text)
        self._valid_calls += event.is_valid
        return CallEnd(self._calls - 1, event.is_valid)


def _pieces(event: CallEvent) -> list[CallBegun | CallArguments | CallEnded]:
    if isinstance(event, Call):
        return [CallBegun(event.name), CallArguments(event.arguments), CallEnded(True)]
    return [event]
