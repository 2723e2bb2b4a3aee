"""Finds tool calls in a model's text by the syntax of its family."""

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from snapexport.runtime.chat.parsers.parser import (
    CallEvent,
    Content,
    Event,
    Tools,
    join_texts,
    longest_beginning,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of text that is read, and its events; none if it is text after all.

    goes_on: the reader reads on after it.
    """

    length: int
    calls: Sequence[CallEvent] = ()
    goes_on: bool = False


class Reader(Protocol):
    """Reads one stretch of calls, from its first character on."""

    def read(self, text: str) -> Found | None:
        """The stretch that the text begins with; None if more of it is needed."""
        ...

    def finish(self, text: str) -> Sequence[CallEvent]:
        """The events of a text that ends here; none if it is text after all."""
        ...


@dataclass(frozen=True)
class ToolSyntax:
    """How a family writes calls.

    starts: texts with which calls begin anywhere. bare: characters with which they begin if
    nothing is before them. closers: texts between and after calls, without a meaning. within:
    further texts that the reader needs.
    """

    starts: tuple[str, ...]
    reader: Callable[[Tools], Reader]
    closers: tuple[str, ...] = ()
    bare: str = ""
    within: tuple[str, ...] = ()


class ToolParser:
    """Passes on content and calls. White space around calls is dropped."""

    def __init__(self, syntax: ToolSyntax, tools: Tools, other: ToolSyntax | None = None) -> None:
        """other: whose bare calls are looked for first, since families' models write them too."""
        self._syntax, self._other, self._tools = syntax, other, tools
        self._held = self._gap = ""
        self._reader: Reader | None = None
        self._reads_other, self._is_no_other = False, other is None
        self._closers = syntax.closers
        self._is_first, self._after_call = True, False
        self._events: list[Event] = []

    def push(self, text: str) -> Sequence[Event]:
        """The events that became certain."""
        self._held += text
        while self._read() if self._reader else self._seek():
            pass
        return self._take_events()

    def finish(self) -> Sequence[Event]:
        """The events of what was held back."""
        if self._reader and (calls := self._reader.finish(self._held)):
            self._events += calls
            return self._take_events()
        self._say(self._held)
        if self._gap:
            self._events.append(Content(self._gap))
        return self._take_events()

    def _read(self) -> bool:
        """Read on in a stretch of calls; whether there may be more to read."""
        assert self._reader is not None
        found = self._reader.read(self._held)
        if found is None:
            return False
        if self._reads_other and not found.calls:
            self._reader, self._reads_other, self._is_no_other = None, False, True
            return True
        text, self._held = self._held[: found.length], self._held[found.length :]
        if not found.goes_on:
            self._reader = None
        if found.calls:
            self._events += found.calls
            self._gap, self._is_first, self._after_call = "", True, True
            self._is_no_other = self._other is None
        else:
            self._say(text)
        return True

    def _seek(self) -> bool:
        """Pass text on up to the next calls; whether they have begun."""
        if self._after_call and not self._skip_closers():
            return False
        if self._is_first:
            bare = self._held.lstrip()
            if not bare:
                return False
            if syntax := self._of_bare(bare[0]):
                return self._begin(len(self._held) - len(bare), syntax)
        starts = self._syntax.starts
        places = [at for start in starts if (at := self._held.find(start)) >= 0]
        if places:
            return self._begin(min(places), self._syntax)
        certain = len(self._held) - longest_beginning(self._held, starts)
        text, self._held = self._held[:certain], self._held[certain:]
        self._say(text)
        return False

    def _of_bare(self, first: str) -> ToolSyntax | None:
        """The syntax of a bare call that begins with this character."""
        if self._other and not self._is_no_other and first in self._other.bare:
            return self._other
        return self._syntax if first in self._syntax.bare else None

    def _begin(self, at: int, syntax: ToolSyntax) -> bool:
        text, self._held = self._held[:at], self._held[at:]
        self._say(text)
        self._reader, self._reads_other = syntax.reader(self._tools), syntax is self._other
        begins = syntax.bare if self._reads_other else ""  # what would begin another bare call
        self._closers = tuple(one for one in self._syntax.closers if one[0] not in begins)
        return True

    def _skip_closers(self) -> bool:
        """Drop white space and closers; whether other text follows."""
        while True:
            self._held = self._held.lstrip()
            closer = next((c for c in self._closers if self._held.startswith(c)), None)
            if closer is None:
                break
            self._held = self._held[len(closer) :]
        if any(closer.startswith(self._held) for closer in ("", *self._closers)):
            return False
        self._after_call = False
        return True

    def _say(self, text: str) -> None:
        """Pass text on, but for white space at its end, which calls may follow."""
        if self._after_call and not text.strip():
            return
        whole = self._gap + text
        certain = whole.rstrip()
        self._gap = whole[len(certain) :]
        if certain:
            self._events.append(Content(certain))
            self._is_first = False

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return join_texts(events)


def call_id() -> str:
    """An id as OpenAI has them."""
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """An id as the templates of Mistral want them: nine letters and digits."""
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(9))
