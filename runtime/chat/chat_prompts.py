"""Turns conversations into requests by a build's chat template, and says how answers are read.

The only place that renders chats: for `LLM.chat`, the commands and every server. A chat's special
tokens come from the template; the tokenizer adds none. Knows no executor and no HTTP.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from snapexport.errors import UserError, needs_extra
from snapexport.runtime.chat import generic_tools, template_files
from snapexport.runtime.chat.parsers.parser import Tools
from snapexport.runtime.chat.parsers.table import OutputFormat, Reading
from snapexport.runtime.chat.template_habits import Habits, Template, length_without
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests import prompts
from snapexport.runtime.requests.prompts import Conversation, encode, require_readable
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.runtime.requests.structured_outputs import StructuredOutputs

Ending = Literal["answer", "message", "text"]
"""How a prompt ends: where an answer begins, after the last message, or with its text."""

_KEYS = ("role", "content")


@dataclass(frozen=True)
class Chat:
    """A conversation, and what the answer may be.

    messages: each has its `role` and its `content`, both texts, and what else the template reads. A
    turn with `tool_calls` may have no content.
    options: values for names that the template reads.
    tools: OpenAI's objects, which the template or a message shows to the model.
    forced: names of tools of which the answer must call one; several: or more than one.
    strict: names of tools whose parameters are enforced as they are, or refused.

    Raises UserError for an option that every template gets anyway.
    """

    messages: Conversation
    options: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    end: Ending = "answer"
    forced: Collection[str] = ()
    several: bool = False
    strict: Collection[str] = ()

    def __post_init__(self) -> None:
        if given := sorted(self.options.keys() & template_files.GIVEN):
            raise UserError(
                f"'{given[0]}' cannot be an option of the chat template",
                "leave it out of chat_template_kwargs",
            )

    @property
    def schemas(self) -> Tools:
        """The schema of each tool's parameters."""
        functions = [tool["function"] for tool in self.tools]
        return {one["name"]: one.get("parameters") or {} for one in functions}


@dataclass(frozen=True)
class ChatPrompt:
    """A chat as the model gets it. park_at: as `Request` has it."""

    chat: Chat
    text: str
    token_ids: Sequence[int]
    park_at: int = 0


@dataclass(frozen=True)
class ChatPrompts:
    """A tokenizer, a chat template whose time and memory are bounded, and how the model answers.

    limits: of what is rendered and tokenized; None: anything is. output_format: of the answers; by
    default they are text.
    """

    tokenizer: Tokenizer | None
    template: Template
    limits: Limits | None = None
    output_format: OutputFormat = OutputFormat()  # noqa: RUF009 (it is frozen)

    @classmethod
    def open(
        cls, directory: Path, tokenizer: Tokenizer | None = None, limits: Limits | None = None
    ) -> "ChatPrompts":
        """Read a build's chat template. Raises UserError if it has none, or a broken one."""
        return cls(tokenizer, open_template(directory), limits)

    def request(
        self,
        messages: Conversation,
        params: SamplingParams,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        parks: bool = False,
    ) -> Request:
        """The request of a conversation's next answer. parks: whether rows are parked.

        Raises UserError.
        """
        assert self.limits, "an LLM has them"
        prompt = self.prompt(Chat(messages, options or {}, tools or ()), parks)
        params = self.params(prompt, params)
        (request,) = prompts.read([prompt.token_ids], params, self.tokenizer, self.limits)
        return replace(request, park_at=prompt.park_at)

    def prompt(self, chat: Chat, parks: bool = False) -> ChatPrompt:
        """Render and tokenize a chat. Raises UserError."""
        text = self.text(chat)
        token_ids = encode(text, self.tokenizer, False)
        parks = parks and chat.end == "answer"
        return ChatPrompt(chat, text, token_ids, self.park_at(chat, token_ids) if parks else 0)

    def text(self, chat: Chat) -> str:
        """The prompt as text. Raises UserError."""
        if chat.tools and self._with_tools:
            return self._with_tools.text(chat)
        _require_messages(chat.messages)
        self._require_short(turn.get("content") for turn in chat.messages)
        chat = self._show(chat)
        known = [self._habits.adapt(turn) for turn in chat.messages]
        text = self.template.render(
            known,
            chat.end == "answer",
            chat.options,
            chat.end == "message",
            list(chat.tools) or None,
        )
        self._require_short([text])
        return text

    def _show(self, chat: Chat) -> Chat:
        """The chat with tools, calls and results as texts, where the template shows none."""
        if not self._habits.shows_calls:
            chat = replace(chat, messages=generic_tools.with_history(chat.messages))
        if not chat.tools or self._habits.shows_tools:
            return chat
        role = self._habits.describing_role
        described = generic_tools.with_tools(chat.messages, chat.tools, role)
        return replace(chat, messages=described, tools=())

    def _require_short(self, texts: Iterable[object]) -> None:
        """Raise UserError for a text that is far too long to be rendered or tokenized."""
        for text in texts if self.limits else ():
            if isinstance(text, str) and self.limits:
                require_readable(text, self.limits)

    def park_at(self, chat: Chat, token_ids: Sequence[int]) -> int:
        """Tokens of a prompt with which the next turn's begins; 0: with all of it, or with none."""
        if chat.tools and self._with_tools:
            return self._with_tools.park_at(chat, token_ids)
        chat = self._show(chat)
        options = json.dumps(chat.options, sort_keys=True, default=repr)
        tails = self._habits.tails(options, bool(chat.tools))
        return length_without(token_ids, tails.get(chat.messages[-1]["role"], ()))

    def params(self, prompt: ChatPrompt, params: SamplingParams) -> SamplingParams:
        """The parameters of an answer to a prompt.

        It ends at the template's end token too. Its text has the tokens that a parser reads. Calls
        that are forced are its form; others may be in place of its form, and reasoning before it.
        Raises UserError for tools that can't be enforced.
        """
        chat = prompt.chat
        if self.output_format.needs(self._special_texts, bool(chat.tools)):
            params = replace(params, skip_special_tokens=False)
        if chat.forced:
            calls = self.output_format.grammar(
                self._forced_tools(chat), chat.strict, self._added_tokens, chat.several
            )
            form = StructuredOutputs(grammar=calls, writes_json=True)
            params = replace(params, structured_outputs=form)
        if params.structured_outputs and (around := self._around_form(prompt)):
            form = replace(params.structured_outputs, within=around)
            params = replace(params, structured_outputs=form)
        return self.ending(params)

    def ending(self, params: SamplingParams) -> SamplingParams:
        """The same parameters, which end the answer at the template's end token too."""
        token, known = self._habits.end_token, self.limits.eos_token_id if self.limits else ()
        if params.ignore_eos or token is None or token in known:
            return params
        return replace(params, stop_token_ids=(*params.stop_token_ids, token))

    def reading(self, prompt: ChatPrompt, has_form: bool) -> Reading:
        """How answers to a prompt are read. has_form: whether they have a form, forced or not."""
        known, chat = self.output_format, prompt.chat
        # In its form from the first token on, an answer has no reasoning.
        text = prompt.text if not has_form or self._before_form(prompt) else None
        parser = partial(known.parser, chat.schemas, text or "")
        if chat.forced:
            parser = partial(known.forced_parser, chat.schemas, text)
        return Reading(parser, known.new_call_id)

    def _around_form(self, prompt: ChatPrompt) -> str:
        """The grammar around a form: reasoning before it, calls in its place; empty: neither."""
        before, chat = self._before_form(prompt), prompt.chat
        if chat.forced or not chat.tools or self.output_format.tools is None:
            return before
        return self.output_format.or_calls(before, chat.schemas, chat.strict, self._added_tokens)

    def _before_form(self, prompt: ChatPrompt) -> str:
        """The grammar of reasoning before a form; empty if a form begins at once."""
        options = prompt.chat.options
        is_off = False in (options.get("enable_thinking"), options.get("thinking"))
        may_begin = not is_off and prompt.chat.end != "text"
        return self.output_format.before_form(prompt.text, may_begin, self._added_tokens)

    def _forced_tools(self, chat: Chat) -> Tools:
        return {name: one for name, one in chat.schemas.items() if name in chat.forced}

    @cached_property
    def _with_tools(self) -> "ChatPrompts | None":
        """Prompts by the template for chats with tools, if it is another one."""
        tool_use = self.template.tool_use
        return replace(self, template=tool_use) if tool_use else None

    @cached_property
    def _habits(self) -> Habits:
        return Habits(self.template, self.tokenizer)

    @cached_property
    def _added_tokens(self) -> dict[str, int]:
        """The tokenizer's added tokens by their texts."""
        known = self.tokenizer.get_added_tokens_decoder().items() if self.tokenizer else ()
        return {token.content: index for index, token in known}

    @cached_property
    def _special_texts(self) -> frozenset[str]:
        """Texts of the tokenizer's special tokens."""
        known = self.tokenizer.get_added_tokens_decoder().values() if self.tokenizer else ()
        return frozenset(token.content for token in known if token.special)


def open_template(directory: Path) -> Template:
    """A build's chat template, whose processes end with it.

    Raises UserError if the build has none, or a broken one.
    """
    require_template(directory)
    from snapexport.runtime.chat import chat_template

    template = chat_template.load(directory, template_files.read_config(directory))
    return chat_template.TemplateProcesses(template)


def require_template(directory: Path) -> None:
    """Raise UserError for a build without a chat template, or where none can be read."""
    if not template_files.has_template(directory):
        hint = f"{template_files.COPY}, or give the prompt as it is: `generate --no-chat`"
        raise UserError(f"{directory} has no chat template", hint)
    with needs_extra("serve"):
        import snapexport.runtime.chat.chat_template  # noqa: F401


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
