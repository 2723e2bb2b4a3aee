"""Finds the token by which a chat template closes an answer.

Many a checkpoint names another token in its config than its template writes, as `<|im_end|>` where
the config has `<|endoftext|>`; its answers would never end. The template itself says which: it is
asked to write a conversation, and the token after the answer is read off. No names are known here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from snapexport.errors import UserError

ANSWER = "This is what the assistant said"
TALK = (
    {"role": "user", "content": "This is what the user asked"},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": "This is what the user asked next"},
)


class Template(Protocol):
    """A chat template: `ChatTemplate`, or the same in processes of its own."""

    @property
    def options(self) -> frozenset[str]:
        """Optional names that it reads."""

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises UserError."""


def end_token(template: Template, tokenizer: Tokenizer) -> int | None:
    """The special token that the template writes after an answer; None if it is something else.

    None too if the template refuses a plain conversation, or changes its texts.
    """
    try:
        text = template.render(TALK, True)
    except UserError:
        return None
    _, answer, rest = text.partition(ANSWER)
    return _first_special(rest.lstrip(), tokenizer) if answer else None


def _first_special(text: str, tokenizer: Tokenizer) -> int | None:
    """The longest of the added tokens that the text begins with."""
    added = tokenizer.get_added_tokens_decoder().items()
    begins = [(len(one.content), token) for token, one in added if text.startswith(one.content)]
    return max(begins)[1] if begins else None
