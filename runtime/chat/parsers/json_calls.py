"""Reads calls in JSON after a header: Hermes and Qwen, Granite, Llama 3, Mistral and DeepSeek."""

import re
from collections.abc import Callable, Sequence

from snapexport.runtime.chat.parsers.calls import calls_of, loaded
from snapexport.runtime.chat.parsers.json_end import JsonEnd
from snapexport.runtime.chat.parsers.parser import Call, Tools
from snapexport.runtime.chat.parsers.tool_parser import Found, Reader, ToolSyntax

MOST_HEADER = 256
"""Characters between the beginning of a call and its JSON; what is longer is no call."""


class JsonReader:
    """A header, then a JSON value: a call, a list of calls, or the arguments of a named one."""

    def __init__(self, header: re.Pattern[str], tools: Tools | None = None) -> None:
        """header: matches up to the JSON, and may have a group `name`. tools: None: a call may name
        another tool than these.
        """
        self._header, self._tools = header, tools
        self._json: JsonEnd | None = None
        self._start = 0
        self._name: str | None = None

    def read(self, text: str) -> Found | None:
        """The calls up to the end of the JSON value."""
        if self._json is None and not self._find_json(text):
            return Found(1) if len(text) > MOST_HEADER else None
        assert self._json is not None
        end = self._json.find(text)
        return None if end is None else Found(end, self._calls(text[self._start : end]))

    def finish(self, text: str) -> Sequence[Call]:
        """None: the JSON has no end."""
        return ()

    def _find_json(self, text: str) -> bool:
        match = self._header.match(text[: 2 * MOST_HEADER])
        if match:
            self._start, self._name = match.end(), match.groupdict().get("name")
            self._json = JsonEnd(self._start)
        return match is not None

    def _calls(self, text: str) -> Sequence[Call]:
        calls = calls_of(loaded(text), self._name)
        if self._tools is not None and any(call.name not in self._tools for call in calls):
            return ()
        return calls


def _after(header: str) -> Callable[[Tools], Reader]:
    pattern = re.compile(header)
    return lambda tools: JsonReader(pattern)


def _of_these_tools(header: str) -> Callable[[Tools], Reader]:
    pattern = re.compile(header)
    return lambda tools: JsonReader(pattern, tools)


HERMES = ToolSyntax(("<tool_call>",), _after(r"<tool_call>\s*(?=[\[{])"), closers=("</tool_call>",))
GRANITE = ToolSyntax(
    ("<|tool_call|>", "<tool_call>"),
    _after(r"<\|?tool_call\|?>\s*(?=[\[{])"),
    closers=("</tool_call>", "<|end_of_text|>"),
)
BARE = ToolSyntax((), _after(r"\s*(?=\{)"), bare="{")
"""A call and nothing else, as a grammar forces it."""
LLAMA3 = ToolSyntax(
    ("<|python_tag|>", '{"name"', '{"type"'),
    _of_these_tools(r"(?:<\|python_tag\|>)?\s*(?=\{)"),
    closers=(";", "<|eom_id|>"),
    bare="{",
)
"""A JSON object may be an answer, so only calls of known tools are calls."""
MISTRAL = ToolSyntax(
    ("[TOOL_CALLS]",),
    _after(
        r"\[TOOL_CALLS\]\s*(?:(?=\[\s*\{|\{)"
        r"|(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{))"
    ),
    within=("[ARGS]", "[CALL_ID]"),
)
DEEPSEEK = ToolSyntax(
    ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    _after(
        r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?"
        r"(?P<name>[^\s<{`]+)(?:<｜tool▁sep｜>|\s*```json)?\s*(?=\{)"
    ),
    closers=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    within=("<｜tool▁sep｜>",),
)
