"""The protocol of parsers of a model's output, and the events that they tell."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Tools = Mapping[str, Mapping[str, Any]]
"""The tools of a request: name to JSON schema of the parameters."""


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A complete tool call. arguments: a JSON object, as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool call whose arguments come piece by piece."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of the arguments of the call that has begun."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of the call that has begun; missing if the answer ended within its arguments.

    is_valid: the arguments are a JSON object.
    """

    is_valid: bool


CallEvent = Call | CallBegun | CallArguments | CallEnded
Event = Content | Reasoning | CallEvent


class OutputParser(Protocol):
    """Reads one answer. The events do not depend on how the text is cut, once they are joined."""

    def push(self, text: str) -> Sequence[Event]:
        """The events that became certain with this text."""
        ...

    def finish(self) -> Sequence[Event]:
        """The events of what was held back."""
        ...


class Plain:
    """Passes text on as content."""

    def push(self, text: str) -> Sequence[Event]:
        """The text itself."""
        return [Content(text)] if text else []

    def finish(self) -> Sequence[Event]:
        """Nothing was held back."""
        return []


class Chained:
    """A parser whose content another one reads."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first, self._second = first, second

    def push(self, text: str) -> Sequence[Event]:
        """The events of both."""
        return self._passed_on(self._first.push(text))

    def finish(self) -> Sequence[Event]:
        """The events of both."""
        return [*self._passed_on(self._first.finish()), *self._second.finish()]

    def _passed_on(self, events: Iterable[Event]) -> list[Event]:
        passed: list[Event] = []
        for event in events:
            passed += self._second.push(event.text) if isinstance(event, Content) else [event]
        return passed


def longest_beginning(text: str, of: Iterable[str]) -> int:
    """Length of the longest end of the text with which one of the markers begins."""
    most = 0
    for marker in of:
        lengths = range(min(len(marker) - 1, len(text)), most, -1)
        most = next((n for n in lengths if marker.startswith(text[-n:])), most)
    return most


def joined(events: Iterable[Event]) -> list[Event]:
    """The events, with neighbouring texts of one kind as one."""
    whole: list[Event] = []
    for event in events:
        last = whole[-1] if whole else None
        if isinstance(event, Content) and isinstance(last, Content):
            whole[-1] = Content(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            whole[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            whole[-1] = CallArguments(last.text + event.text)
        else:
            whole.append(event)
    return whole
