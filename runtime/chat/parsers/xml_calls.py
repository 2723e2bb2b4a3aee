"""Reads calls in tags, as Qwen3-Coder writes them: <function=NAME> <parameter=KEY> value.

A call of a known tool is passed on from its first parameter: texts as they come, other values at
their ends. Which of JSON's types a parameter has, its schema says.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from snapexport.runtime.chat.parsers.parser import (
    Call,
    CallArguments,
    CallBegun,
    CallEnded,
    CallEvent,
    Tools,
    dump_json,
    load_json,
    longest_beginning,
)
from snapexport.runtime.chat.parsers.tool_parser import Found, ToolSyntax
from snapexport.runtime.requests.grammars.schemas import found_at

_OF_PYTHON = {str: "string", bool: "boolean", int: "integer", float: "number"}
_OF_PYTHON |= {type(None): "null", list: "array", dict: "object"}
_ALL = frozenset(_OF_PYTHON.values())

Types = frozenset[str]
TEXT: Types = frozenset(["string"])


def type_of(value: Any) -> str:
    """The type of a value that was read from JSON."""
    return _OF_PYTHON.get(type(value), "")


class ParameterTypes:
    """The types of a tool's parameters, by type, enum, const, choices and $ref in its schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, Types] = {}
        """By identity: schemas may lead to themselves, and hostile ones repeat their references."""

    def of(self, name: str) -> Types:
        """The types of a parameter. A text if the tool doesn't know it; all if nothing is said."""
        properties = self._root.get("properties")
        schema = properties.get(name) if isinstance(properties, dict) else None
        try:
            return TEXT if schema is None else self._of(schema)
        except RecursionError:
            return _ALL

    def _of(self, schema: Any) -> Types:
        if not isinstance(schema, Mapping):
            return _ALL
        if id(schema) not in self._known:
            self._known[id(schema)] = _ALL
            self._known[id(schema)] = self._types_of(schema)
        return self._known[id(schema)]

    def _types_of(self, schema: Mapping[str, Any]) -> Types:
        found = _own(schema)
        if "$ref" in schema:
            found &= self._of(found_at(self._root, schema["$ref"]))
        for one in _list_of(schema, "allOf"):
            found &= self._of(one)
        for key in "anyOf", "oneOf":
            if choices := _list_of(schema, key):
                found &= Types().union(*map(self._of, choices))
        return found


def _own(schema: Mapping[str, Any]) -> Types:
    """The types by what a schema itself says."""
    kind = schema.get("type", list(_ALL))
    kinds = kind if isinstance(kind, list) else [kind]
    found = Types(one for one in _ALL if one in kinds or (one == "integer" and "number" in kinds))
    values = [schema["const"]] if "const" in schema else _list_of(schema, "enum")
    return found & Types(map(type_of, values)) if values else found


def _list_of(schema: Mapping[str, Any], key: str) -> list[Any]:
    return value if isinstance(value := schema.get(key), list) else []


_CLOSE, _OPEN, _END = "</parameter>", "<parameter=", "</function>"
_STOPS = (*(f"{space}{tag}" for tag in (_CLOSE, _OPEN, _END) for space in ("", "\n")),)
"""What ends a value. A line break before it is not the value's."""
_STOP = re.compile(rf"\n?(?:{_CLOSE}|(?={_OPEN}|{_END}))")
_HEAD = re.compile(r"(?:<tool_call>)?\s*<function=\s*([^>\s]{1,256})\s*>")
_PARAMETER = re.compile(
    r"\s*<parameter=\s*([^>\s]{1,256})\s*>\n?(.*?)\n?"
    r"(?:</parameter>|(?=<parameter=)|\Z)",
    re.DOTALL,
)
_KEY = rf"\s{{0,64}}{_OPEN}\s{{0,64}}(?P<key>[^<>\s]{{1,256}})\s{{0,64}}>"
_BEGINNING = re.compile(_HEAD.pattern + _KEY)
_NEXT = re.compile(rf"{_KEY}|\s{{0,64}}(?P<end>{_END})")
_UNSURE = re.compile(rf"\s{{0,64}}(?:{_OPEN}\s{{0,64}}[^<>\s]{{0,256}}\s{{0,64}})?")
"""What may become the next parameter, but for its tag's own beginning."""
_PART = re.compile(
    rf"\s{{0,64}}(?:{'|'.join(t[:n] for t in (_OPEN, _END) for n in range(len(t)))})"
)
_WORDS = {"True": True, "False": False, "None": None, "null": None}
MOST_HEAD = 600


class XmlReader:
    """Reads stage by stage: a function's name and first key, a value, what follows it."""

    def __init__(self, tools: Tools) -> None:
        self._tools, self._searched = tools, 0
        self._stage: Callable[[str], Found | None] = self._read_beginning
        self._parameters = ParameterTypes({})
        self._types = TEXT
        self._is_at_start = True

    def read(self, text: str) -> Found | None:
        """The events of the next stretch."""
        return self._stage(text)

    def finish(self, text: str) -> Sequence[CallEvent]:
        """The rest of a call that has begun."""
        if self._stage == self._read_between:
            return [CallEnded(is_valid=False)]
        if self._stage == self._read_beginning or not text:
            return ()
        rest = text.removeprefix("\n") if self._is_at_start else text
        return [CallArguments(_escape(rest) if self._types == TEXT else rest)]

    def _read_beginning(self, text: str) -> Found | None:
        match = _BEGINNING.match(text[:MOST_HEAD])
        if match and match[1] in self._tools:
            self._parameters = ParameterTypes(self._tools[match[1]])
            return self._begin_value(match, "{", [CallBegun(match[1])])
        if len(text) > MOST_HEAD and not _HEAD.match(text):
            return Found(1)
        at = text.find(_END, max(0, self._searched - len(_END)))
        self._searched = len(text)
        return None if at < 0 else Found(at + len(_END), self._whole(text[:at]))

    def _whole(self, text: str) -> Sequence[Call]:
        """A call that could not be passed on before its end."""
        head = _HEAD.match(text)
        if head is None:
            return ()
        known = ParameterTypes(self._tools.get(head[1], {}))
        arguments, at = {}, head.end()
        while match := _PARAMETER.match(text, at):
            arguments[match[1]] = _value(match[2], known.of(match[1]))
            at = match.end()
        return () if text[at:].strip() else (Call(head[1], dump_json(arguments)),)

    def _begin_value(self, match: re.Match[str], before: str, events: Sequence[CallEvent]) -> Found:
        """Begin a value after its key."""
        self._types = self._parameters.of(match["key"])
        self._searched, self._is_at_start = 0, True
        self._stage = self._read_text if self._types == TEXT else self._read_value
        quote = '"' if self._types == TEXT else ""
        key = CallArguments(f"{before}{dump_json(match['key'])}: {quote}")
        return Found(match.end(), [*events, key], goes_on=True)

    def _read_text(self, text: str) -> Found | None:
        start = int(self._is_at_start and text.startswith("\n"))
        if match := _STOP.search(text, start):
            self._stage = self._read_between
            piece = _escape(text[start : match.start()]) + '"'
            return Found(match.end(), [CallArguments(piece)], goes_on=True)
        certain = len(text) - longest_beginning(text[start:], _STOPS)
        if certain == start:
            return None
        self._is_at_start = False
        return Found(certain, [CallArguments(_escape(text[start:certain]))], goes_on=True)

    def _read_value(self, text: str) -> Found | None:
        match = _STOP.search(text, max(0, self._searched - len(f"\n{_CLOSE}")))
        self._searched = len(text)
        if match is None:
            return None
        self._stage = self._read_between
        value = _value(text[: match.start()].removeprefix("\n"), self._types)
        return Found(match.end(), [CallArguments(dump_json(value))], goes_on=True)

    def _read_between(self, text: str) -> Found | None:
        match = _NEXT.match(text)
        if match and match["end"]:
            return Found(match.end(), [CallArguments("}"), CallEnded(is_valid=True)])
        if match:
            return self._begin_value(match, ", ", [])
        if _UNSURE.fullmatch(text) or _PART.fullmatch(text):
            return None
        return Found(0, [CallEnded(is_valid=False)])


def _escape(text: str) -> str:
    """A piece of a text in JSON."""
    return dump_json(text)[1:-1]


def _value(text: str, types: Types) -> Any:
    """The value of a parameter: JSON's if its type is admitted, else the text if a text is."""
    stripped = text.strip()
    value = _WORDS[stripped] if stripped in _WORDS else load_json(stripped)
    is_json = value is not None or stripped in _WORDS
    is_admitted = types != TEXT and (type_of(value) in types or "string" not in types)
    return value if is_json and is_admitted else text


QWEN3_CODER = ToolSyntax(("<tool_call>", "<function="), XmlReader, closers=("</tool_call>",))
