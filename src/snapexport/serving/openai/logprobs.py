"""Log probabilities in OpenAI's two forms: a chat's and a completion's.

Both name a token by its text. A token that is only a part of a character appears as the replacement
character, and has `bytes` null in a chat.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from snapexport.runtime.requests.request import TokenLogprobs
from snapexport.serving.token_text import TokenText

LEAST = -9999.0
"""OpenAI's value for a probability of zero."""


def chat_logprobs(tokens: Iterable[TokenLogprobs], text_of: TokenText) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    content = [
        _entry(text_of(token.token_id), token.logprob)
        | {"top_logprobs": [_entry(text_of(other), logprob) for other, logprob in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    is_part = "\N{REPLACEMENT CHARACTER}" in text
    return {
        "token": text,
        "logprob": max(logprob, LEAST),
        "bytes": None if is_part else list(text.encode()),
    }


@dataclass(slots=True)
class CompletionLogprobs:
    """Writes `logprobs` of a completion's choice, part by part.

    first: a token before all others, which has no probability. offset: characters of the tokens so
    far, from the beginning of the choice's text.
    """

    text_of: TokenText
    first: int | None = None
    offset: int = 0

    def write(self, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The four columns for the next tokens."""
        rows: list[tuple[str, float | None, dict[str, float] | None, int]] = []
        if self.first is not None:
            rows.append((self.text_of(self.first), None, None, self.offset))
            self.offset += len(rows[0][0])
            self.first = None
        for token in tokens:
            text, logprob = self.text_of(token.token_id), max(token.logprob, LEAST)
            top = {self.text_of(other): max(value, LEAST) for other, value in token.top}
            rows.append((text, logprob, top | {text: logprob}, self.offset))
            self.offset += len(text)
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [row[column] for row in rows] for column, name in enumerate(names)}
