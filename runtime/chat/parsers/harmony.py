"""Reads the channels of gpt-oss: analysis is reasoning, calls have a recipient, the rest content.

Source of the format: OpenAI's guide "harmony response format".
"""

import re
from collections.abc import Sequence

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
