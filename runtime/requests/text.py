"""Decodes tokens to text one by one: whole characters only, and nothing past a stop string.

The texts that `push` and `finish` return join to the tokenizer's decoding of all tokens, cut before
the first stop string. Knows no request and no sampling.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Text of a growing list of tokens, held back while its last character is incomplete."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._restart()

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        self._held.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception as error:  # the library raises nothing narrower
            if "prefix" not in str(error):
                raise
            return self.finish()  # broken bytes changed the meaning of those before them
        if text is None:
            return ""
        self._held.clear()
        return text

    def finish(self) -> str:
        """The text still held back, with a replacement character where it is incomplete."""
        text = self._tokenizer.decode(self._held, skip_special_tokens=self._skips)
        self._restart()
        return text

    def _restart(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=self._skips)
        self._held: list[int] = []


class StopStrings:
    """Passes text on up to the first stop string, however the text is split.

    The first is the one that ends first; of those that end together the longest. Text that may be
    the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str, may_stop: bool = True) -> str:
        """The part of the text so far that can no longer belong to a stop string.

        may_stop: whether a stop string counts that ends in this text.
        """
        if self.found:
            return ""
        searched = len(self._held)
        self._held += text
        found = [(self._find(stop, searched), stop) for stop in self._stops if may_stop]
        ends = [(at + len(stop), at) for at, stop in found if at >= 0]
        if ends:
            self.found = True
            return self._release(min(ends)[1])
        return self._release(len(self._held) - self._longest_beginning())

    def finish(self) -> str:
        """The text held back, which was not a stop string; empty if one was found."""
        return "" if self.found else self._release(len(self._held))

    def _find(self, stop: str, searched: int) -> int:
        """Where it begins in the held text; -1 if it does not end after what was searched."""
        return self._held.find(stop, max(0, searched - len(stop) + 1))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _longest_beginning(self) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(self._held)), 0, -1)
        return next((n for n in lengths if self._begins_stop(self._held[-n:])), 0)

    def _begins_stop(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stops)


class TextStream:
    """A detokenizer followed by the stop strings."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], skip_special_tokens: bool = True
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens)
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met. No text follows it."""
        return self._stops.found

    def push(self, token: int, may_stop: bool = True) -> str:
        """The text that became certain with this token."""
        return self._stops.push(self._detokenizer.push(token), may_stop)

    def finish(self) -> str:
        """The text that was held back."""
        return self._stops.push(self._detokenizer.finish()) + self._stops.finish()


class NoText:
    """The text stream of a build without a tokenizer: always empty."""

    stopped = False

    def push(self, token: int, may_stop: bool = True) -> str:
        """Return an empty text."""
        return ""

    def finish(self) -> str:
        """Return an empty text."""
        return ""
