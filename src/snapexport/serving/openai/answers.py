"""The parts of an answer: content, reasoning and numbered tool calls.

A protocol's writer turns them into its objects. Knows no HTTP.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from snapexport.runtime.chat.parsers.parser import (
    Call,
    Content,
    Event,
    OutputParser,
    Plain,
    Reasoning,
)
from snapexport.runtime.chat.parsers.tool_parser import call_id
from snapexport.runtime.requests.request import OutputDelta


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A call of the answer, with its number and a fresh id."""

    index: int
    id: str
    name: str
    arguments: str


Part = Content | Reasoning | ToolCallPart


@dataclass(frozen=True)
class Reading:
    """How a request's answers are read. parallel: whether an answer may have several calls."""

    parser: Callable[[], OutputParser] = Plain
    new_id: Callable[[], str] = call_id
    parallel: bool = True


class Answer:
    """Reads the outputs of one answer."""

    def __init__(self, reading: Reading) -> None:
        self._parser, self._reading = reading.parser(), reading
        self._calls = 0

    def parts(self, output: OutputDelta) -> list[Part]:
        """What an output adds."""
        events = list(self._parser.push(output.text))
        if output.finish_reason:
            events += self._parser.finish()
        return list(self._numbered(events))

    def finish_reason(self, output: OutputDelta) -> str | None:
        """OpenAI's, after the output's parts were read."""
        ended = output.finish_reason
        return "tool_calls" if self._calls and ended == "stop" else ended

    def _numbered(self, events: Iterable[Event]) -> Iterable[Part]:
        for event in events:
            if not isinstance(event, Call):
                yield event
            elif self._reading.parallel or not self._calls:
                index, self._calls = self._calls, self._calls + 1
                yield ToolCallPart(index, self._reading.new_id(), event.name, event.arguments)


def content_of(parts: Sequence[Part]) -> str:
    """The joined content."""
    return "".join(part.text for part in parts if isinstance(part, Content))


def reasoning_of(parts: Sequence[Part]) -> str:
    """The joined reasoning."""
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def calls_of(parts: Sequence[Part]) -> list[ToolCallPart]:
    """The calls."""
    return [part for part in parts if isinstance(part, ToolCallPart)]
