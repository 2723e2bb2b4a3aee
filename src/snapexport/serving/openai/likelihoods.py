"""Log probabilities in OpenAI's two forms: a chat's, and a completion's.

Both name tokens by their text. A token that is a part of a character has no text of its own: it
shows as the replacement character, and a chat's `bytes` are null then.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from snapexport.serving.openai.pieces import Chosen, Likelihood

LEAST = -9999.0
"""What OpenAI tells for a probability of zero."""


def of_chat(chosen: Iterable[Chosen]) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    content = [
        _entry(one) | {"top_logprobs": [_entry(other) for other in one.top]} for one in chosen
    ]
    return {"content": content, "refusal": None}


def _entry(token: Likelihood) -> dict[str, Any]:
    is_part = "\N{REPLACEMENT CHARACTER}" in token.text
    return {
        "token": token.text,
        "logprob": _bounded(token),
        "bytes": None if is_part else list(token.text.encode()),
    }


@dataclass(slots=True)
class CompletionLikelihoods:
    """Writes `logprobs` of a completion's choice, part by part: it counts where each token begins.

    Offsets add up the texts of the tokens, from the beginning of the answer.
    """

    offset: int = 0

    def write(self, chosen: Iterable[Chosen]) -> dict[str, Any]:
        """The next tokens' four columns."""
        columns: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for one in chosen:
            top = {other.text: _bounded(other) for other in (*one.top, one)}
            row = (one.text, _bounded(one), top, self.offset)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            self.offset += len(one.text)
        return columns


def _bounded(token: Likelihood) -> float:
    return max(token.logprob, LEAST)
