"""Tool calls and reasoning in a conversation's history, in the form that a chat template takes.

OpenAI's arguments are a JSON text; most templates take an object, as transformers gives them.
"""

import json
from collections.abc import Mapping
from typing import Any

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of a message's reasoning: DeepSeek's, OpenRouter's and gpt-oss's."""


def with_arguments(message: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """The message, the arguments of whose calls are all texts, or objects where they can be."""
    calls = [_call(call, as_text) for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


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


def called(arguments: object) -> list[dict[str, Any]]:
    """A short conversation with a call, to see what a template does with the arguments."""
    function = {"name": "f", "arguments": arguments}
    call = {"id": "callcall1", "type": "function", "function": function}
    return [
        {"role": "user", "content": "Call."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "callcall1", "name": "f"},
    ]
