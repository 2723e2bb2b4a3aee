"""The build's chat template, as the harness asks for it: an error names the harness's flag.

How a template is found and rendered is `snapexport.serving.chat_template`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.contract.errors import UserError
from snapexport.serving import chat_template
from snapexport.serving.chat_template import Message

__all__ = ["ChatTemplate", "Message", "load"]


@dataclass(frozen=True)
class ChatTemplate:
    """A template that the harness's flags chose."""

    template: chat_template.ChatTemplate

    @property
    def source(self) -> str:
        return self.template.source

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The prompt's text; it ends inside the last message if the model is to go on with it."""
        with _flags_in_hint("--system_instruction, or --apply_chat_template"):
            return self.template.render(messages, add_generation_prompt)


def load(directory: Path, config: Mapping[str, Any]) -> ChatTemplate:
    """The build's chat template. Raises UserError."""
    with _flags_in_hint("--apply_chat_template"):
        return ChatTemplate(chat_template.load(directory, config))


@contextmanager
def _flags_in_hint(flags: str) -> Iterator[None]:
    """The messages are the task's: what the user can change is the flags."""
    try:
        yield
    except UserError as error:
        raise UserError(error.message, f"leave out {flags}, or {error.hint}") from None
