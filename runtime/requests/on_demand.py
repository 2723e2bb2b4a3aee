"""Finds what only some requests need, when the first of them comes: chat templates and grammars.

An LLM knows them by these protocols: it neither loads nor reads their modules before.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.prompts import Conversation
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.runtime.requests.structured_outputs import Grammar, StructuredOutputs

MAKERS = {
    "chats": ("snapexport.runtime.chat.chat_prompts", "ChatPrompts"),
    "grammars": ("snapexport.runtime.requests.grammars.compiler", "Grammars"),
}
"""A module, and its class."""


class Chats(Protocol):
    """Makes requests of conversations."""

    def request(
        self,
        messages: Conversation,
        params: SamplingParams,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        parks: bool = False,
    ) -> Request:
        """The request of a conversation's next answer. Raises UserError."""


class Grammars(Protocol):
    """Compiles the forms of answers."""

    def open(self) -> object:
        """Read the tokenizer. Raises UserError."""

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        """The grammar of a form. Any thread may call it. Raises UserError."""


def open_chats(directory: Path, tokenizer: Tokenizer | None, limits: Limits) -> Chats:
    """The chats of a build. Raises UserError if it has no chat template, or a broken one."""
    chats: Chats = _class("chats").open(directory, tokenizer, limits)
    return chats


def make_grammars(tokenizer: Tokenizer | None, vocab_size: int) -> Grammars:
    """The grammars of a tokenizer."""
    grammars: Grammars = _class("grammars")(tokenizer, vocab_size)
    return grammars


def _class(name: str) -> Any:
    module, made = MAKERS[name]
    return getattr(importlib.import_module(module), made)
