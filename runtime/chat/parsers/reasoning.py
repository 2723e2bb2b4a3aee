"""Splits reasoning off: between two texts before the answer, or in the channels of gpt-oss.

In these, calls have a recipient, and the rest is content. Source of the format: OpenAI's guide
"harmony response format".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.runtime.chat.parsers.parser import (
    OPENED,
    ArgumentsText,
    CallBegun,
    Content,
    Event,
    Reasoning,
    Tools,
    calls_of,
    join_texts,
    load_json,
    longest_beginning,
)


@dataclass(frozen=True)
class ThinkSyntax:
    """The texts before and after reasoning."""

    opens: str
    closes: str


THINK = ThinkSyntax("<think>", "</think>")
GRANITE = ThinkSyntax("Here is my thought process:", "Here is my response:")
GEMMA4 = ThinkSyntax("<|channel>thought", "<channel|>")


class ThinkParser:
    """Passes on reasoning, and then content. White space around reasoning is dropped."""

    def __init__(self, syntax: ThinkSyntax, prompt: str) -> None:
        """prompt: it may open the reasoning itself."""
        self._syntax = syntax
        self._held = self._gap = ""
        self._is_open = prompt.rstrip().endswith(syntax.opens)
        self._has_begun = self._is_over = False
        self._drops_space, self._is_at_start = False, True

    def push(self, text: str) -> Sequence[Event]:
        """The events that became certain."""
        if self._is_over:
            return self._content(text)
        self._held += text
        if not self._has_begun and not self._begin():
            return []
        if self._is_over:
            return self._content(self._release(len(self._held)))
        return self._think()

    def finish(self) -> Sequence[Event]:
        """The text that was held back: all of it is reasoning if the content has not begun."""
        rest = self._release(len(self._held))
        if self._is_open:
            return self._reasoning(rest)
        return [Content(rest)] if rest else []

    def _begin(self) -> bool:
        """Whether it is known if the answer begins with reasoning."""
        opens, bare = self._syntax.opens, self._held.lstrip()
        if bare.startswith(opens):
            self._held, self._is_open = bare[len(opens) :], True
        elif opens.startswith(bare):
            return False
        self._has_begun, self._is_over = True, not self._is_open
        return True

    def _think(self) -> Sequence[Event]:
        closes = self._syntax.closes
        at = self._held.find(closes)
        if at < 0:
            certain = len(self._held) - longest_beginning(self._held, [closes])
            return self._reasoning(self._release(certain))
        events = self._reasoning(self._release(at))
        self._release(len(closes))
        self._gap, self._is_open, self._is_over, self._drops_space = "", False, True, True
        return join_texts([*events, *self._content(self._release(len(self._held)))])

    def _reasoning(self, text: str) -> list[Event]:
        """The text, but for white space at its beginning, and at its end until more follows."""
        whole = self._gap + text
        if self._is_at_start:
            whole = whole.lstrip()
        certain = whole.rstrip()
        self._gap = whole[len(certain) :]
        if certain:
            self._is_at_start = False
        return [Reasoning(certain)] if certain else []

    def _content(self, text: str) -> list[Event]:
        if self._drops_space:
            text = text.lstrip()
            self._drops_space = not text
        return [Content(text)] if text else []

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
MARKS = (CHANNEL, MESSAGE, "<|constrain|>", *ENDS)
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
_ARGUMENTS = re.compile(rf"\s{{0,64}}(?={OPENED})")
MOST_HEADER = 256


class Harmony:
    """Reads messages, each a header and a body. What has no header is content."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._held, self._searched = "", 0
        self._header: str | None = None
        """Of the message whose body is read; None between messages."""
        self._call: ArgumentsText | None = None
        """The arguments of the call whose body is passed on as it comes."""

    def push(self, text: str) -> Sequence[Event]:
        """The events that became certain."""
        self._held += text
        events: list[Event] = []
        while True:
            before = self._held, self._header
            events += self._message() if self._header is None else self._body(self._header)
            if (self._held, self._header) == before or not self._held:
                return join_texts(events)

    def finish(self) -> Sequence[Event]:
        """The events of what was held back."""
        rest, self._held = self._held, ""
        if self._header is None:
            return [] if _is_header(rest) else [Content(rest)] if rest else []
        return [*self._events_of(self._header, rest), *self._end_call()]

    def _message(self) -> list[Event]:
        """Read a header, if the text has one."""
        held = self._held.lstrip()
        if not held:
            return []
        if any(mark.startswith(held) and mark != held for mark in (CHANNEL, START)):
            return []
        self._header = ""
        if not _is_header(held):
            return []
        at = held.find(MESSAGE, 0, MOST_HEADER)
        if at >= 0:
            self._header, self._held = held[:at], held[at + len(MESSAGE) :]
        elif len(held) < MOST_HEADER:
            self._header = None  # the rest of it is to come
        else:  # it is not a header: its first character can't begin another message
            self._held = held[1:]
            return [Content(held[:1])]
        return []

    def _body(self, header: str) -> list[Event]:
        """Pass a body on up to its end; a call's body is kept until its arguments begin."""
        begun = self._begin_call(header)
        ends = [(at, end) for end in ENDS if (at := self._held.find(end, self._searched)) >= 0]
        if ends:
            at, end = min(ends)
            body, rest = self._held[:at], self._held[at:]
            self._held = rest if end == START else rest[len(end) :]
            self._header, self._searched = None, 0
            return [*begun, *self._events_of(header, body), *self._end_call()]
        if self._recipient(header) and not self._call:
            self._searched = max(0, len(self._held) - max(map(len, ENDS)))
            return []
        certain = len(self._held) - longest_beginning(self._held, ENDS)
        body, self._held = self._held[:certain], self._held[certain:]
        return [*begun, *self._events_of(header, body)]

    def _begin_call(self, header: str) -> list[Event]:
        """Begin a call of a known tool once its arguments do."""
        name, match = self._recipient(header), _ARGUMENTS.match(self._held)
        if self._call or match is None or name is None or name not in self._tools:
            return []
        self._held, self._searched = self._held[match.end() :], 0
        self._call = ArgumentsText()
        return [CallBegun(name)]

    def _end_call(self) -> list[Event]:
        """End the call whose body was passed on as it came."""
        call, self._call = self._call, None
        return [call.end()] if call else []

    def _events_of(self, header: str, body: str) -> list[Event]:
        """The event of a body, or of a part of it."""
        if self._call:
            return list(self._call.add(body))
        if name := self._recipient(header):
            calls = calls_of(load_json(body) if body.strip() else {}, name)
            return list(calls) or [Content(body)]
        if not body:
            return []
        return [Reasoning(body) if f"{CHANNEL}analysis" in header else Content(body)]

    def _recipient(self, header: str) -> str | None:
        match = _RECIPIENT.search(header)
        return match[1] if match and self._tools else None


def _is_header(text: str) -> bool:
    return text.lstrip().startswith((CHANNEL, START))
