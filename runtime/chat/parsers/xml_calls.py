"""Reads calls in tags, as Qwen3-Coder writes them: <function=NAME> <parameter=KEY> value."""

import re
from collections.abc import Sequence
from typing import Any

from snapexport.runtime.chat.parsers.calls import dumped, loaded
from snapexport.runtime.chat.parsers.parser import Call, Tools
from snapexport.runtime.chat.parsers.tool_parser import Found, ToolSyntax

_END = "</function>"
_HEAD = re.compile(r"(?:<tool_call>)?\s*<function=\s*([^>\s]{1,256})\s*>")
_PARAMETER = re.compile(
    r"\s*<parameter=\s*([^>\s]{1,256})\s*>\n?(.*?)\n?"
    r"(?:</parameter>|(?=<parameter=)|\Z)",
    re.DOTALL,
)
_WORDS = {"True": True, "False": False, "None": None, "null": None}
MOST_HEAD = 600


class XmlReader:
    """A function's name and its parameters, up to </function>."""

    def __init__(self, tools: Tools) -> None:
        self._tools, self._searched = tools, 0

    def read(self, text: str) -> Found | None:
        """The call up to its end."""
        if len(text) > MOST_HEAD and not _HEAD.match(text):
            return Found(1)
        at = text.find(_END, max(0, self._searched - len(_END)))
        self._searched = len(text)
        return None if at < 0 else Found(at + len(_END), self._calls(text[:at]))

    def finish(self, text: str) -> Sequence[Call]:
        """None: the call has no end."""
        return ()

    def _calls(self, text: str) -> Sequence[Call]:
        head = _HEAD.match(text)
        if head is None:
            return ()
        properties = self._tools.get(head[1], {}).get("properties")
        known = properties if isinstance(properties, dict) else {}
        arguments, at = {}, head.end()
        while match := _PARAMETER.match(text, at):
            arguments[match[1]] = _value(match[2], known.get(match[1]))
            at = match.end()
        return () if text[at:].strip() else (Call(head[1], dumped(arguments)),)


def _value(text: str, schema: Any) -> Any:
    """The value of a parameter: a text where the schema wants one or says nothing."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if schema is None or kind == "string":
        return text
    stripped = text.strip()
    if stripped in _WORDS:
        return _WORDS[stripped]
    value = loaded(stripped)
    return text if value is None else value


QWEN3_CODER = ToolSyntax(("<tool_call>", "<function="), XmlReader, closers=("</tool_call>",))
