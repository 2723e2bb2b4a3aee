"""Log probabilities in OpenAI's two forms: a chat's and a completion's.

A chat names a token by its text, and gives its bytes. A completion has only names: those of parts
of characters are `bytes:\\xe2\\x82`, as OpenAI's are, so that alternatives stay apart.
"""

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from snapexport.runtime.requests.request import TokenLogprobs
from snapexport.serving.token_text import TokenText

LEAST = -9999.0
"""OpenAI's value for a probability of zero."""


def chat_logprobs(tokens: Iterable[TokenLogprobs], text_of: TokenText) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    content = [
        _entry(token.token_id, token.logprob, text_of)
        | {"top_logprobs": [_entry(*other, text_of) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, text_of: TokenText) -> dict[str, Any]:
    return {
        "token": text_of(token),
        "logprob": max(logprob, LEAST),
        "bytes": list(text_of.data(token)),
    }


def _name(token: int, text_of: TokenText) -> str:
    if not text_of.is_part(token):
        return text_of(token)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text_of.data(token))


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class CompletionLogprobs:
    """Writes `logprobs` of a completion's choice, part by part.

    first: a token before all others, which has no probability. offset: characters of the tokens so
    far, from the beginning of the choice's text.
    """

    text_of: TokenText
    first: int | None = None
    offset: int = 0
    _decoder: codecs.IncrementalDecoder = field(default_factory=_decoder)

    def write(self, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The four columns for the next tokens."""
        rows: list[tuple[str, float | None, dict[str, float] | None, int]] = []
        if self.first is not None:
            rows.append((_name(self.first, self.text_of), None, None, self._advance(self.first)))
            self.first = None
        for token in tokens:
            name, logprob = _name(token.token_id, self.text_of), max(token.logprob, LEAST)
            top = {_name(other, self.text_of): max(value, LEAST) for other, value in token.top}
            rows.append((name, logprob, top | {name: logprob}, self._advance(token.token_id)))
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [row[column] for row in rows] for column, name in enumerate(names)}

    def _advance(self, token: int) -> int:
        """The token's offset. A character counts with the last of its parts."""
        before = self.offset
        self.offset += len(self._decoder.decode(self.text_of.data(token)))
        return before
