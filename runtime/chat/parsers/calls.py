"""Makes tool calls of parsed JSON, in the shapes that models write."""

import json
from math import isfinite
from typing import Any, NoReturn

from snapexport.runtime.chat.parsers.parser import Call, CallArguments, CallEnded

OPENED = r"\{\s{0,64}[\"}]"
"""How an object begins, so that a call may be told before its end."""


def calls_of(value: Any, name: str | None = None) -> tuple[Call, ...]:
    """The calls of an object or a list of objects; none if any of them is not a call.

    name: of the one call whose arguments the value is.
    """
    if name is not None:
        calls = [call_of(name, value)]
    else:
        calls = [_named(one) for one in (value if isinstance(value, list) else [value])]
    known = tuple(call for call in calls if call)
    return known if len(known) == len(calls) else ()


def call_of(name: Any, arguments: Any) -> Call | None:
    """The call; None without a name, or with arguments that are no object."""
    if isinstance(arguments, str):  # JSON within JSON
        arguments = loaded(arguments)
    is_named = isinstance(name, str) and name and _is_unicode(name)
    if not is_named or not isinstance(arguments, dict):
        return None
    return Call(name, dumped(arguments))


def _named(value: Any) -> Call | None:
    """The call of {"name": ..., "arguments": ...}."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not value.keys() & {"arguments", "parameters"}:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return call_of(value.get("name"), {} if arguments is None else arguments)


class ArgumentsText:
    """The text of arguments that are told as they come."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, text: str) -> list[CallArguments]:
        """The event of a piece."""
        self._pieces.append(text)
        return [CallArguments(text)] if text else []

    def ended(self) -> CallEnded:
        """The event of the end."""
        return CallEnded(isinstance(loaded("".join(self._pieces)), dict))


def loaded(text: str) -> Any:
    """The value of a JSON text; None if it is none, or has a number that no double can be."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def dumped(value: Any) -> str:
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
