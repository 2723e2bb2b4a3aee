"""Defines the protocol of parsers of a model's output, and their events; makes calls of JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn, Protocol

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


def join_texts(events: Iterable[Event]) -> list[Event]:
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


OPENED = r"\{\s{0,64}[\"}]"
"""The beginning of an object of arguments, from which on a call is passed on as it comes."""


NAMES = ("name", "function", "tool")
"""Keys of a call's name."""
WRAPPERS = ("function", "tool_call", "tool_calls")
"""Keys of a call's own object, or of a list of them."""


def calls_of(value: Any, name: str | None = None) -> tuple[Call, ...]:
    """The calls of an object or a list of objects; none if any of them is not a call.

    name: of the one call whose arguments the value is.
    """
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    if name is not None:
        calls = [call_of(name, value)]
    else:
        calls = [_named_call(one) for one in (value if isinstance(value, list) else [value])]
    known = tuple(call for call in calls if call)
    return known if len(known) == len(calls) else ()


def call_of(name: Any, arguments: Any) -> Call | None:
    """The call; None without a name, or with arguments that are not an object."""
    if isinstance(arguments, str):  # JSON within JSON
        arguments = load_json(arguments)
    is_named = isinstance(name, str) and name and _is_unicode(name)
    if not is_named or not isinstance(arguments, dict):
        return None
    return Call(name, dump_json(arguments))


def _named_call(value: Any) -> Call | None:
    """The call of {"name": ..., "arguments": ...}."""
    for wrapper in WRAPPERS if isinstance(value, dict) else ():
        if isinstance(value.get(wrapper), dict):
            value = value[wrapper]
    if not isinstance(value, dict) or not value.keys() & {"arguments", "parameters"}:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    name = next((value[key] for key in NAMES if key in value), None)
    return call_of(name, {} if arguments is None else arguments)


class ArgumentsText:
    """The text of arguments that are passed on as they come."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, text: str) -> list[CallArguments]:
        """The event of a piece."""
        self._pieces.append(text)
        return [CallArguments(text)] if text else []

    def end(self) -> CallEnded:
        """The event of the end."""
        return CallEnded(isinstance(load_json("".join(self._pieces)), dict))


def load_json(text: str) -> Any:
    """The value of a JSON text; None if it is none, or has a number that no double can be."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def dump_json(value: Any) -> str:
    """The JSON text of a value. Raises ValueError for a number that JSON doesn't have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if _is_unicode(text) else json.dumps(value)


def _is_unicode(text: str) -> bool:
    """Whether an answer can be encoded with it: halves of characters can't."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _finite(number: str) -> float:
    return value if isfinite(value := float(number)) else _refuse(number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
