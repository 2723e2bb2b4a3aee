"""Turns conversations into token ids by a build's chat template, and finds how an answer ends.

A chat's special tokens come from the template; the tokenizer adds none. `LLM.chat` and the server
share it. Knows no executor.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from snapexport.errors import UserError, needs_extra
from snapexport.runtime.chat import template_files
from snapexport.runtime.chat.end_token import Template, end_token
from snapexport.runtime.chat.history import called, with_arguments, with_reasoning
from snapexport.runtime.chat.parking_point import common_length, is_before_generation_prompt
from snapexport.runtime.requests.prompts import encode
from snapexport.runtime.requests.request import SamplingParams

Message = Mapping[str, Any]
"""A turn: its `role` and its `content`, both texts, and what else the template reads.

A turn with `tool_calls` may have no content.
"""
Conversation = Sequence[Message]

Ending = Literal["answer", "message", "text"]
"""How a prompt ends: where an answer begins, after the last message, or with its text."""

_KEYS = ("role", "content")


@dataclass(frozen=True)
class ChatPrompts:
    """A tokenizer and a chat template whose time and memory are bounded."""

    tokenizer: Tokenizer | None
    template: Template
    eos_token_id: frozenset[int]
    """Tokens that end an answer anyway."""

    @classmethod
    def open(
        cls, directory: Path, tokenizer: Tokenizer | None, eos_token_id: frozenset[int]
    ) -> "ChatPrompts":
        """Read a build's chat template. Raises UserError if it has none, or a broken one."""
        return cls(tokenizer, open_template(directory), eos_token_id)

    def token_ids(
        self,
        messages: Conversation,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """The prompt of the next answer. options: values for names that the template reads."""
        return encode(self.text(messages, options, tools=tools), self.tokenizer, False)

    def text(
        self,
        messages: Conversation,
        options: Mapping[str, Any] | None = None,
        end: Ending = "answer",
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The same prompt as text. tools: OpenAI's objects, for a template that reads tools."""
        if tools and self._with_tools:
            return self._with_tools.text(messages, options, end, tools)
        _require_messages(messages)
        require_free(options or {})
        self._require_tools(messages, tools)
        known = [self._known(turn) for turn in messages]
        return self.template.render(known, end == "answer", options, end == "message", tools)

    def park_at(
        self,
        token_ids: Sequence[int],
        messages: Conversation,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Tokens of a prompt with which the next turn's begins; 0: with all of it, or with none."""
        if tools and self._with_tools:
            return self._with_tools.park_at(token_ids, messages, options, tools)
        if not self._parks_before(json.dumps(options or {}, sort_keys=True, default=repr)):
            return 0
        text = self.text(messages, options, "message", tools)
        length = common_length(token_ids, encode(text, self.tokenizer, False))
        return length if length < len(token_ids) else 0

    @cached_property
    def _with_tools(self) -> "ChatPrompts | None":
        """Prompts by the template for chats with tools, if it is another one."""
        tool_use = self.template.tool_use
        return replace(self, template=tool_use) if tool_use else None

    @cached_property
    def _parks_before(self) -> Callable[[str], bool]:
        """Whether rows are parked before the generation prompt, by options as JSON."""

        @lru_cache(maxsize=64)
        def parks_before(options: str) -> bool:
            return is_before_generation_prompt(self.template, json.loads(options))

        return parks_before

    def ending(self, params: SamplingParams) -> SamplingParams:
        """The same parameters, which end the answer at the template's end token too."""
        token = self._end_token
        if params.ignore_eos or token is None or token in self.eos_token_id:
            return params
        return replace(params, stop_token_ids=(*params.stop_token_ids, token))

    def require_tools(self) -> None:
        """Raise UserError if the template shows no tools to the model."""
        if not (self.template.tool_use or self.template).reads_tools:
            raise UserError(
                "the checkpoint's chat template does not read tools",
                "leave tools out, or send tool_choice none",
            )

    def _require_tools(self, messages: Conversation, tools: object) -> None:
        """Raise UserError for tools, or calls of them, that the template would leave out."""
        if tools:
            self.require_tools()
        if any(turn.get("tool_calls") for turn in messages) and not self._shows_calls:
            raise UserError(
                "the checkpoint's chat template does not read tool_calls",
                "give the calls and their results as text",
            )

    @property
    def _shows_calls(self) -> bool:
        return "tool_calls" in self.template.source

    def _known(self, message: Message) -> Message:
        """The message as the template takes it.

        The role developer becomes system for a template that does not know developer. Reasoning
        gets the template's name for it. Arguments of calls become objects, unless the template
        joins them to texts.
        """
        message = with_reasoning(message, self.template.source)
        if message["role"] == "developer" and "developer" not in self.template.source:
            return {**message, "role": "system"}
        if not message.get("tool_calls"):
            return message
        return with_arguments({"content": None, **message}, self._joins_arguments)

    @cached_property
    def _joins_arguments(self) -> bool:
        """Whether the template takes arguments as a text alone, as DeepSeek V3's does."""
        return not self._renders_call({"a": "b"}) and self._renders_call('{"a": "b"}')

    def _renders_call(self, arguments: object) -> bool:
        try:
            self.template.render(called(arguments), True)
        except UserError:
            return False
        return True

    @cached_property
    def _end_token(self) -> int | None:
        return None if self.tokenizer is None else end_token(self.template, self.tokenizer)


def require_free(options: Mapping[str, Any]) -> None:
    """Raise UserError for an option that every template gets anyway."""
    if given := sorted(options.keys() & template_files.GIVEN):
        raise UserError(
            f"'{given[0]}' cannot be an option of the chat template",
            "leave it out of chat_template_kwargs",
        )


def ending(add_generation_prompt: bool, continue_final_message: bool) -> Ending:
    """The ending by the names of transformers, of which at most one is true."""
    if add_generation_prompt:
        return "answer"
    return "text" if continue_final_message else "message"


def open_template(directory: Path) -> Template:
    """A build's chat template, whose processes end with it.

    Raises UserError if the build has none, or a broken one.
    """
    require_template(directory)
    with needs_extra("serve"):
        from snapexport.runtime.chat import chat_template, template_process
    template = chat_template.load(directory, template_files.read_config(directory))
    return template_process.TemplateProcesses(template)


def require_template(directory: Path) -> None:
    """Raise UserError for a build without a chat template."""
    if not template_files.has_template(directory):
        hint = f"{template_files.COPY}, or give the prompt as it is: `generate --no-chat`"
        raise UserError(f"{directory} has no chat template", hint)


def is_one(messages: Conversation | Sequence[Conversation]) -> bool:
    """Whether it is one conversation, and not a list of them."""
    return (
        isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[0], Mapping)
    )


def _require_messages(messages: Conversation) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        raise UserError(f"{messages!r} is not a conversation", "give a list of messages")
    for message in messages:
        if not isinstance(message, Mapping):
            raise _no_message(message)
        texts = _KEYS[:1] if message.get("tool_calls") and message.get("content") is None else _KEYS
        if not all(isinstance(message.get(key), str) for key in texts):
            raise _no_message(message)


def _no_message(message: object) -> UserError:
    return UserError(
        f"{message!r:.200} is not a message",
        'a message is {"role": "user", "content": "..."}, both texts',
    )
