"""Reads calls in JSON: Hermes and Qwen, Granite, Llama 3, Mistral and DeepSeek, and bare ones.

After a header comes one call, a list of calls, or the arguments of a named one. A call of a known
tool is passed on piece by piece, if its name comes before its arguments; every other one at its
end. An object by itself, or in a fence, is a call if it names a known tool, and else text.
"""

import re
from collections.abc import Callable, Sequence

from snapexport.runtime.chat.parsers.parser import (
    NAMES,
    OPENED,
    WRAPPERS,
    ArgumentsText,
    Call,
    CallBegun,
    CallEvent,
    Tools,
    calls_of,
    load_json,
)
from snapexport.runtime.chat.parsers.tool_parser import Found, Reader, ToolSyntax

_STRUCTURE = re.compile(r'["\\{}\[\]]')


class JsonEnd:
    """Counts brackets outside of texts. Every character is looked at once."""

    def __init__(self, start: int, depth: int = 0) -> None:
        """start: where the value begins. depth: the brackets that were opened before."""
        self._at, self._depth, self._in_text = start, depth, False
        self._end: int | None = None

    def find(self, text: str) -> int | None:
        """The value's end; None if it is not there yet. text: as in the last call, or longer."""
        while self._end is None and (match := _STRUCTURE.search(text, self._at)):
            found, end = match.group(), match.end()
            if found == "\\":
                if end == len(text):
                    self._at = match.start()  # what it escapes is to come
                    return None
                end += self._in_text
            elif found == '"':
                self._in_text = not self._in_text
            elif not self._in_text:
                self._depth += 1 if found in "{[" else -1
            self._at = end
            if self._depth <= 0 and not self._in_text and found in "]}":
                self._end = end
        self._at = max(self._at, len(text))
        return self._end

    def let_go(self) -> int:
        """How much of the last text was looked at; the next one begins after it."""
        length, self._at = self._at, 0
        return length


MOST_HEADER = 256
"""Characters between the beginning of a call and its JSON; what is longer is not a call."""
_NAMED = re.compile(
    r'(?P<list>\[\s*)?\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,'
    rf'\s*"(?:arguments|parameters)"\s*:\s*(?={OPENED})'
)
_ARGUMENTS = re.compile(rf"(?={OPENED})")
_UNSURE = re.compile(r"\s{0,64}(?:,\s{0,64})?")
_REST = re.compile(r'\s{0,64}(?:\}|,\s{0,64}")')
"""What follows arguments in a call's object: its end, or another key."""
_NEXT = re.compile(r"\s{0,64}(?:(?P<comma>,)\s{0,64}(?=\{)|\])")
"""What follows a call in a list."""
_FENCE = re.compile(r"\s{0,64}```")
_NO_FENCE_YET = re.compile(r"\s{0,64}`{0,2}")
_FIRST = re.compile(
    r'(?:\[\s*)?(?:\{\s*(?:"(?P<key>\w*)(?:(?P<whole>")\s*(?::\s*(?:"(?P<name>[^"\\]+)")?)?)?)?)?'
)
"""The beginning of an object, or of a list of them, up to the text that is its first value."""
_KEYS = ("name", "type", "id", "arguments", "parameters", *NAMES, *WRAPPERS)


def may_be_call(text: str, tools: Tools) -> bool:
    """Whether an object that begins so may be a call of a known tool: by its first key."""
    match = _FIRST.match(text)
    assert match, "nothing is a beginning too"
    key, name = match["key"] or "", match["name"]
    if not match["whole"]:
        return match.end() == len(text) and any(known.startswith(key) for known in _KEYS)
    is_name = key in NAMES and name is not None
    return name in tools if is_name else key in _KEYS


class JsonReader:
    """Reads stage by stage: the header, a call up to its arguments, these, what follows them."""

    def __init__(
        self, header: re.Pattern[str], tools: Tools, unsure: re.Pattern[str] | None = None
    ) -> None:
        """header: matches up to the JSON, and may have groups `name`, and `fence` of Markdown.
        unsure: what a header may begin with, where an object by itself is a call; what names
        another tool than these is then text.
        """
        self._header, self._tools, self._unsure = header, tools, unsure
        self._stage: Callable[[str], Found | None] = self._read_header
        self._name: str | None = None
        self._in_list = self._in_fence = False
        self._start, self._json, self._arguments = 0, JsonEnd(0), ArgumentsText()
        self._ended: list[CallEvent] = []
        """Passed on once it is known where the object of the last arguments ends."""

    def read(self, text: str) -> Found | None:
        """The events of the next stretch."""
        return self._stage(text)

    def finish(self, text: str) -> Sequence[CallEvent]:
        """The rest of a call that has begun; nothing of one that is passed on at its end."""
        if self._stage == self._read_arguments:
            return self._arguments.add(text)
        return self._ended

    def _read_header(self, text: str) -> Found | None:
        match = self._header.match(text[: 2 * MOST_HEADER])
        if match is None:
            may_come = self._unsure is None or self._unsure.fullmatch(text)
            return None if may_come and len(text) <= MOST_HEADER else Found(1)
        groups = match.groupdict()
        self._name, self._in_fence = groups.get("name"), bool(groups.get("fence"))
        self._expect(match.end())
        return self._stage(text)

    def _expect(self, start: int) -> None:
        """Let a call, or a list of them, begin there."""
        self._start, self._json, self._ended = start, JsonEnd(start), []
        self._stage = self._read_call

    def _read_call(self, text: str) -> Found | None:
        """Read up to the arguments, if they can be passed on as they come, and else to the end."""
        beginning = text[self._start : self._start + MOST_HEADER]
        match = (_ARGUMENTS if self._name else _NAMED).match(beginning)
        name = self._name or (match["name"] if match else "")
        if match and name in self._tools:
            self._in_list |= bool(match.groupdict().get("list"))
            self._arguments, self._json = ArgumentsText(), JsonEnd(0)
            self._stage = self._read_arguments
            return Found(self._start + match.end(), [CallBegun(name)], goes_on=True)
        if self._unsure and not may_be_call(beginning, self._tools):
            self._stage = self._read_text
            return self._stage(text)
        end = self._json.find(text)
        if end is None:
            return None
        return self._pass_on(text, end, self._calls(text[self._start : end]))

    def _read_text(self, text: str) -> Found | None:
        """Pass on an object that is not a call up to its end: no call begins within it."""
        if (end := self._json.find(text)) is not None:
            return Found(end)
        length = self._json.let_go()
        return Found(length, goes_on=True) if length else None

    def _read_arguments(self, text: str) -> Found | None:
        end = self._json.find(text)
        length = self._json.let_go() if end is None else end
        pieces = self._arguments.add(text[:length])
        if end is None:
            return Found(length, pieces, goes_on=True) if pieces else None
        self._ended = [self._arguments.end()]
        if self._name:
            return Found(end, [*pieces, *self._ended])
        self._json, self._stage = JsonEnd(0, depth=1), self._read_rest
        return Found(end, pieces, goes_on=True)

    def _read_rest(self, text: str) -> Found | None:
        """Drop the rest of the object that had the arguments. What can't be its rest is text."""
        if _UNSURE.fullmatch(text):
            return None
        if not _REST.match(text):
            return Found(0, self._ended)
        end = self._json.find(text)
        return None if end is None else self._pass_on(text, end, self._ended)

    def _pass_on(self, text: str, end: int, calls: Sequence[CallEvent]) -> Found | None:
        """Calls that end there, with what leads to the next one of a list."""
        if self._in_list and _UNSURE.fullmatch(text, end):
            return None
        match = _NEXT.match(text, end) if self._in_list else None
        if match is None:
            return self._close(text, end, calls)
        if match["comma"] is None:
            return self._close(text, match.end(), calls)
        self._expect(0)
        return Found(match.end(), calls, goes_on=True)

    def _close(self, text: str, end: int, calls: Sequence[CallEvent]) -> Found | None:
        """The last calls, with the end of their fence."""
        if not (self._in_fence and calls):
            return Found(end, calls)
        self._ended = list(calls)
        if _NO_FENCE_YET.fullmatch(text, end):
            return None
        match = _FENCE.match(text, end)
        return Found(match.end() if match else end, calls)

    def _calls(self, text: str) -> Sequence[Call]:
        calls = calls_of(load_json(text), self._name)
        if self._unsure and any(call.name not in self._tools for call in calls):
            return ()
        return calls


def _after(header: str) -> Callable[[Tools], Reader]:
    pattern = re.compile(header)
    return lambda tools: JsonReader(pattern, tools)


def _of_these_tools(header: str, unsure: str) -> Callable[[Tools], Reader]:
    pattern, begun = re.compile(header), re.compile(unsure)
    return lambda tools: JsonReader(pattern, tools, begun)


_FENCED = _of_these_tools(
    r"(?P<fence>```\w{0,16}\s{0,64})?(?=[\[{])", r"`{0,3}|```\w{0,16}\s{0,64}"
)


HERMES = ToolSyntax(("<tool_call>",), _after(r"<tool_call>\s*(?=[\[{])"), closers=("</tool_call>",))
GRANITE = ToolSyntax(
    ("<|tool_call|>", "<tool_call>"),
    _after(r"<\|?tool_call\|?>\s*(?=[\[{])"),
    closers=("</tool_call>", "<|end_of_text|>"),
)
BARE = ToolSyntax((), _after(r"\s*(?=\{)"), bare="{")
"""A call and nothing else, as a grammar forces it."""
KNOWN = ToolSyntax((), _FENCED, bare="{[`")
"""Calls of known tools, as models write them that forget their family's form."""
GENERIC = ToolSyntax(
    ('{"name"', '{ "name"', '{\n  "name"', '[{"name"', '{"tool_call', "```"), _FENCED, bare="{[`"
)
LLAMA3 = ToolSyntax(
    ("<|python_tag|>", '{"name"', '{"type"'),
    _of_these_tools(r"(?:<\|python_tag\|>)?\s*(?=\{)", r"<\|python_tag\|>\s*"),
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
