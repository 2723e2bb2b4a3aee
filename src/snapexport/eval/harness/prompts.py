"""Turns the harness's texts and messages into token ids, with one BOS token and never two.

Takes the runtime's tokenizer, the special tokens' names from tokenizer_config.json, and the build's
chat template. Knows no model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.contract.errors import UserError
from snapexport.serving import chat_template
from snapexport.serving.chat_template import CONFIG, Message, read_config, special_tokens

__all__ = ["ChatTemplate", "Encoder", "Message", "load_template", "read_config"]


class Encoder:
    """A tokenizer, with the tokens that begin and end a text."""

    def __init__(
        self, tokenizer: Tokenizer, config: Mapping[str, Any], eos_token_id: Iterable[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = special_tokens(config)
        self._added = _first_added(tokenizer)
        self._eos = sorted(eos_token_id)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of a text. None: with the tokenizer's BOS, unless the text begins with it.

        A chat template writes the BOS into the text, and the tokenizer would add another one.
        """
        special = add_special_tokens is not False
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        doubled = self._added is not None and ids[:2] == [self._added, self._added]
        return ids[1:] if doubled and add_special_tokens is None else ids

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens without the special ones."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    @property
    def eot(self) -> int:
        """The token that ends a text."""
        named = self._id_of("eos_token")
        if named is None and not self._eos:
            raise UserError(
                "the build names no end-of-sequence token", f"add eos_token to its {CONFIG}"
            )
        return self._eos[0] if named is None else named

    @property
    def prefix(self) -> int:
        """The token before a text without context: BOS, or else end-of-sequence."""
        bos = self._id_of("bos_token") if self._added is None else self._added
        return self.eot if bos is None else bos

    def _id_of(self, name: str) -> int | None:
        text = self._texts.get(name)
        token: int | None = None if text is None else self._tokenizer.token_to_id(text)
        return token


def _first_added(tokenizer: Tokenizer) -> int | None:
    """The special token that the tokenizer adds before any text."""
    empty = tokenizer.encode("")
    marked = zip(empty.ids, empty.special_tokens_mask, strict=True)
    return next((token for token, is_special in marked if is_special), None)


@dataclass(frozen=True)
class ChatTemplate:
    """The build's chat template, whose errors name the harness's flags."""

    template: chat_template.ChatTemplate

    @property
    def source(self) -> str:
        return self.template.source

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The prompt's text. Without a generation prompt it ends inside the last message."""
        with _flags_in_hint("--system_instruction, or --apply_chat_template"):
            return self.template.render(messages, add_generation_prompt)


def load_template(directory: Path, config: Mapping[str, Any]) -> ChatTemplate:
    """The build's chat template. Raises UserError."""
    with _flags_in_hint("--apply_chat_template"):
        return ChatTemplate(chat_template.load(directory, config))


@contextmanager
def _flags_in_hint(flags: str) -> Iterator[None]:
    """Names in a hint the flags that the user can change: the messages are the task's."""
    try:
        yield
    except UserError as error:
        raise UserError(error.message, f"leave out {flags}, or {error.hint}") from None
