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
from snapexport.runtime.chat.history import (
    ARGUMENT,
    STYLES,
    CallStyle,
    called,
    with_calls,
    with_reasoning,
)
from snapexport.runtime.chat.parking_point import Tails, dropped, length_without
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.prompts import encode, require_readable
from snapexport.runtime.requests.request import SamplingParams

Message = Mapping[str, Any]
"""A turn: its `role` and its `content`, both texts, and what else the template reads.

A turn with `tool_calls` may have no content.
"""
Conversation = Sequence[Message]

Ending = Literal["answer", "message", "text"]
"""How a prompt ends: where an answer begins, after the last message, or with its text."""

_KEYS = ("role", "content")

_TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


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
        *,
        limits: Limits | None = None,
    ) -> list[int]:
        """The prompt of the next answer. options: values for names that the template reads.

        limits: of what is rendered and tokenized; None: anything is.
        """
        for message in messages if limits and isinstance(messages, list | tuple) else ():
            text = message.get("content") if isinstance(message, Mapping) else None
            if isinstance(text, str) and limits:
                require_readable(text, limits)
        text = self.text(messages, options, tools=tools)
        if limits:
            require_readable(text, limits)
        return encode(text, self.tokenizer, False)

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
        known = json.dumps(options or {}, sort_keys=True, default=repr)
        tails = self._dropped(known, bool(tools))
        return length_without(token_ids, tails.get(messages[-1]["role"], ()))

    @cached_property
    def _with_tools(self) -> "ChatPrompts | None":
        """Prompts by the template for chats with tools, if it is another one."""
        tool_use = self.template.tool_use
        return replace(self, template=tool_use) if tool_use else None

    @cached_property
    def _dropped(self) -> Callable[[str, bool], Tails]:
        """Tokens that the next turn leaves out, by options as JSON, and whether tools are given."""

        @lru_cache(maxsize=64)
        def found(options: str, with_tools: bool) -> Tails:
            given, tools = json.loads(options), [_TOOL] if with_tools else None

            def render(messages: Conversation) -> str:
                return self.template.render(messages, True, given, tools=tools)

            return dropped(render, self.tokenizer, called(self._call_style))

        return found

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
        gets the template's name for it. Calls are in the template's style.
        """
        message = with_reasoning(message, self.template.source)
        if message["role"] == "developer" and "developer" not in self.template.source:
            return {**message, "role": "system"}
        if not message.get("tool_calls"):
            return message
        return with_calls(message, self._call_style)

    @cached_property
    def _call_style(self) -> CallStyle:
        """The first style in which a call is shown, and no missing content as the text None.

        DeepSeek V3's template joins arguments to texts, and shows no call beside content. Qwen3's
        refuses content that is null.
        """
        texts = [self._rendered(called(style)) for style in STYLES]
        ranks = [
            (not text, ARGUMENT not in text, text.count("None"), at)
            for at, text in enumerate(texts)
        ]
        return STYLES[min(ranks)[-1]]

    def _rendered(self, messages: Conversation) -> str:
        """Of a conversation with a call; empty if the template refuses it."""
        try:
            return self.template.render(messages, True, tools=[_TOOL])
        except UserError:
            return ""

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
