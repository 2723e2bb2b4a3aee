"""The prompt's characters, laid out in spans: what the page shades and points at.

A span is the least run of characters that whole tokens cover. Mostly it is one token; the bytes of
one emoji may be four. A token without characters (a BOS) is an empty span.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding


class Span(NamedTuple):
    """Characters [start, end) of the prompt, and how many tokens share them."""

    start: int
    end: int
    tokens: int


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt and its tokens. offsets: for each token its [start, end) in characters."""

    text: str
    offsets: tuple[tuple[int, int], ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str, encoding: Encoding) -> "TokenizedPrompt":
        """What the runtime's tokenizer made of a text."""
        return cls(text, tuple(encoding.offsets), tuple(encoding.tokens))

    def spans(self) -> NDArray[np.uint32]:
        """[spans, 3]: start, end and number of tokens.

        Characters are counted in UTF-16 units, as JavaScript does.
        """
        table = np.array(_spans(self.offsets), np.int64).reshape(-1, 3)
        table[:, :2] = _utf16_units(self.text)[table[:, :2]]
        return table.astype(np.uint32)

    def bare(self) -> dict[int, str]:
        """The tokens that belong to no character, by index."""
        return {
            index: name
            for index, (name, (start, end)) in enumerate(zip(self.names, self.offsets, strict=True))
            if start >= end
        }


def _spans(offsets: Iterable[tuple[int, int]]) -> list[Span]:
    """All tokens, in order. No two spans overlap."""
    spans: list[Span] = []
    for start, end in offsets:
        here = spans[-1].end if spans else 0
        span = Span(start, end, 1) if start < end else Span(here, here, 1)
        while spans and spans[-1].end > span.start:
            span = _union(spans.pop(), span)
        spans.append(span)
    return spans


def _union(left: Span, right: Span) -> Span:
    return Span(min(left.start, right.start), max(left.end, right.end), left.tokens + right.tokens)


def _utf16_units(text: str) -> NDArray[np.int64]:
    """For each character, and for the text's end, how many UTF-16 units stand before it."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.concatenate([[0], np.cumsum(1 + (points > 0xFFFF))])
