"""Finds the token by which a chat template closes an answer.

Many checkpoints name another token in their config than their template writes, such as
`<|endoftext|>` where the template has `<|im_end|>`; their answers would never end. So the template
writes a conversation, and the token after the answer closes it. Knows no token's name.
"""

from typing import TYPE_CHECKING, Union

from tokenizers import Tokenizer

from snapexport.errors import UserError

if TYPE_CHECKING:
    from snapexport.runtime.chat.chat_template import ChatTemplate
    from snapexport.runtime.chat.template_process import TemplateProcesses

Template = Union["ChatTemplate", "TemplateProcesses"]
"""A chat template, or one whose time and memory are bounded."""


ANSWER = "This is what the assistant said"
TALK = (
    {"role": "user", "content": "This is what the user asked"},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": "This is what the user asked next"},
)


def sources(template: Template) -> str:
    """The template's text, with that of the one which takes its place where tools are given."""
    return template.source + (template.tool_use.source if template.tool_use else "")


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
    begins = [(len(t.content), token) for token, t in added if text.startswith(t.content)]
    return max(begins)[1] if begins else None
