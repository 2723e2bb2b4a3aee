"""Splits reasoning off that stands before the answer, between two texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from snapexport.runtime.chat.parsers.parser import (
    Content,
    Event,
    Reasoning,
    join_texts,
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
