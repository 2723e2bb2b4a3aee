"""Finds where the row of a chat's prompt is parked, so that the next turn's prompt begins with it.

A generation prompt may be more than the beginning of the answer in the next turn's history: some
templates open or close a block of reasoning there. The tokens before it are in both. Knows no
template's words.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.runtime.chat.end_token import TALK
from snapexport.runtime.requests.prompts import encode

Talk = Sequence[Mapping[str, Any]]

Tails = Mapping[str, Sequence[tuple[int, ...]]]
"""Ends of prompts, by the role of the last message, longest first."""

_ANSWERS: Sequence[Talk] = (
    TALK[1:],
    ({**TALK[1], "content": "Another answer, with no word in common"}, TALK[2]),
)
"""What might follow; two, so that no beginning of an answer is taken for the prompt's end."""


def dropped(render: Callable[[Talk], str], tokenizer: Tokenizer | None, call: Talk) -> Tails:
    """The tokens at a prompt's end that the next turn's prompt does not have there.

    What they are depends on the next turn too. None if it changes what was before the last message.
    render: raises UserError. call: a user's message, a call and its result.
    """

    def rendered(talk: Talk) -> str:
        try:
            return render(talk)
        except UserError:
            return ""

    found = {}
    for talk in (call[:1], call):
        text, last = rendered(talk), talk[-1]
        this, before, *following = (
            encode(each, tokenizer, False)
            for each in (
                text,
                text[: max(text.rfind(last["content"]), 0)],
                *(rendered([*talk, *more]) for more in (*_ANSWERS, call[1:])),
            )
        )
        least = _common(this, before)
        shared = {n for other in following if (n := _common(this, other)) >= least}
        found[last["role"]] = [tuple(this[n:]) for n in sorted(shared) if 0 < n < len(this)]
    return found


def length_without(token_ids: Sequence[int], tails: Sequence[tuple[int, ...]]) -> int:
    """Tokens of a prompt before the longest of these that it ends with; 0: before none."""
    lengths = (len(token_ids) - len(tail) for tail in tails)
    ends = zip(lengths, tails, strict=True)
    return next((n for n, tail in ends if n > 0 and tuple(token_ids[n:]) == tail), 0)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
