"""Tool calls and reasoning in a conversation's history, in the form that a chat template takes.

OpenAI's arguments are a JSON text; most templates take an object, as transformers gives them.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

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
        arguments = _parsed(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(text: str) -> Any:
    """The object; the text itself if it is none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def called(style: CallStyle) -> list[dict[str, Any]]:
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
