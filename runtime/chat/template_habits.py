"""Finds out how a chat template writes conversations, by letting it write short ones.

The end token: many checkpoints name another token in their config than their template writes, such
as `<|endoftext|>` where the template has `<|im_end|>`; their answers would never end. The token
after the answer of a short conversation closes it.

The style of tool calls: OpenAI's arguments are a JSON text; most templates take an object, as
transformers gives them.

Tools: a template may show none, or refuse a system message that could describe them.

The parking point: the row of a chat's prompt is parked so that the next turn's prompt begins with
it. A generation prompt may be more than the beginning of the answer in the next turn's history:
some templates open or close a block of reasoning there. The tokens before it are in both.

Knows no template's words and no token's name.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.runtime.chat.parsers.parser import load_json
from snapexport.runtime.requests.prompts import Message, encode

if TYPE_CHECKING:
    from snapexport.runtime.chat.chat_template import ChatTemplate, TemplateProcesses

LOG = logging.getLogger("snapexport.chat")

Template = Union["ChatTemplate", "TemplateProcesses"]
"""A chat template, or one whose time and memory are bounded."""


ANSWER = "This is what the assistant said"
TALK = (
    {"role": "user", "content": "This is what the user asked"},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": "This is what the user asked next"},
)

Talk = Sequence[Message]

Tails = Mapping[str, Sequence[tuple[int, ...]]]
"""Ends of prompts, by the role of the last message, longest first."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of a message's reasoning: DeepSeek's, OpenRouter's and gpt-oss's."""


class CallStyle(NamedTuple):
    """How a chat template takes a turn with calls.

    content: of a turn that has none. as_text: whether arguments are a text, or an object.
    """

    content: str | None = None
    as_text: bool = False


STYLES = tuple(CallStyle(content, as_text) for content in (None, "") for as_text in (False, True))

ARGUMENT = "the value of the argument"

_TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}


@dataclass(frozen=True)
class Habits:
    """The habits of one template, each found when it is first asked for."""

    template: Template
    tokenizer: Tokenizer | None

    @cached_property
    def end_token(self) -> int | None:
        """The token after an answer; None if there is none, or no tokenizer."""
        return None if self.tokenizer is None else end_token(self.template, self.tokenizer)

    @cached_property
    def call_style(self) -> CallStyle:
        """The first style in which a call is shown, and no missing content as the text None.

        DeepSeek V3's template joins arguments to texts, and shows no call beside content. Qwen3's
        refuses content that is null.
        """
        texts = [self._text_of_call(style) for style in STYLES]
        ranks = [
            (not text, ARGUMENT not in text, text.count("None"), at)
            for at, text in enumerate(texts)
        ]
        return STYLES[min(ranks)[-1]]

    @cached_property
    def tails(self) -> Callable[[str, bool], Tails]:
        """Tokens that the next turn leaves out, by options as JSON, and whether tools are given."""

        @lru_cache(maxsize=64)
        def found(options: str, with_tools: bool) -> Tails:
            given, tools = json.loads(options), [_TOOL] if with_tools else None

            def render(messages: Talk) -> str:
                return self.template.render(messages, True, given, tools=tools)

            return find_tails(render, self.tokenizer, talk_with_call(self.call_style))

        return found

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template shows tools to the model. If not, the log says once what is done."""
        if not self.template.reads_tools:
            LOG.warning(
                "the chat template shows no tools: the %s message describes them, and calls are "
                "read as JSON",
                self.describing_role,
            )
        return self.template.reads_tools

    @cached_property
    def describing_role(self) -> str:
        """The role of the message that may describe tools: system where the template shows one."""
        talk = [{"role": "system", "content": ANSWER}, TALK[0]]
        try:
            return "system" if ANSWER in self.template.render(talk, True) else "user"
        except UserError:
            return "user"

    @property
    def shows_calls(self) -> bool:
        """Whether the template writes the calls of a conversation's history."""
        return "tool_calls" in self.template.source

    def adapt(self, message: Message) -> Message:
        """The message as the template takes it.

        The role developer becomes system for a template that does not know developer. Reasoning
        gets the template's name for it. Calls are in the template's style.
        """
        message = with_reasoning(message, self.template.source)
        if message["role"] == "developer" and "developer" not in self.template.source:
            return {**message, "role": "system"}
        if not message.get("tool_calls"):
            return message
        return with_calls(message, self.call_style)

    def _text_of_call(self, style: CallStyle) -> str:
        """The text of a conversation with a call; empty if the template refuses it."""
        try:
            return self.template.render(talk_with_call(style), True, tools=[_TOOL])
        except UserError:
            return ""


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


def with_calls(message: Mapping[str, Any], style: CallStyle) -> dict[str, Any]:
    """The message with calls in this style; arguments become objects where they can be."""
    calls = [_call(call, style.as_text) for call in message["tool_calls"]]
    return {**message, "content": message.get("content") or style.content, "tool_calls": calls}


def with_reasoning(message: Mapping[str, Any], template: str) -> Mapping[str, Any]:
    """The message with its reasoning under the name that the template reads."""
    given = [message[name] for name in REASONING if message.get(name)]
    read = next((name for name in REASONING if _reads(template, name)), None)
    if not given or read is None or message.get(read):
        return message
    if read == "thinking" and message.get("content"):  # gpt-oss refuses both
        return message
    return {**message, read: given[0]}


def _reads(template: str, name: str) -> bool:
    return f".{name}" in template or f"'{name}'" in template or f'"{name}"' in template


def _call(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments", {})
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        arguments = _object_of(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _object_of(text: str) -> Any:
    """The object; the text itself if it is none."""
    value = load_json(text or "{}")
    return value if isinstance(value, dict) else text


def talk_with_call(style: CallStyle) -> list[dict[str, Any]]:
    """A short conversation with a call, to see what a template does with it."""
    function = {"name": "f", "arguments": {"a": ARGUMENT}}
    call = {"id": "callcall1", "type": "function", "function": function}
    return [
        {"role": "user", "content": "This is what is asked for."},
        with_calls({"role": "assistant", "tool_calls": [call]}, style),
        {
            "role": "tool",
            "content": "This is the result.",
            "tool_call_id": "callcall1",
            "name": "f",
        },
    ]


_ANSWERS: Sequence[Talk] = (
    TALK[1:],
    ({**TALK[1], "content": "Another answer, with no word in common"}, TALK[2]),
)
"""What might follow; two, so that no beginning of an answer is taken for the prompt's end."""


def find_tails(render: Callable[[Talk], str], tokenizer: Tokenizer | None, call: Talk) -> Tails:
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
