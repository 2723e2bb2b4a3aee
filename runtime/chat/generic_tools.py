"""Writes tools, calls and results into plain messages, for templates that show none of them.

Tools are described in the system message, or in the first message of a template that shows no
system. A call is the JSON object that the model is asked for, a result a message of the user's.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.requests.prompts import Message

_INTRODUCTION = (
    "You can call functions. Each line describes one:\n{tools}\n\n"
    "To call a function, answer only with a JSON object of its name and its arguments:\n"
    '{{"name": "NAME", "arguments": {{"KEY": VALUE}}}}\n'
    "If none is needed, answer in plain words."
)
_SYSTEM = ("system", "developer")


def with_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], role: str
) -> list[Message]:
    """The messages with a description of the tools in the first one. role: system, or user.

    Raises UserError.
    """
    text = _INTRODUCTION.format(tools="\n".join(map(_line, tools)))
    first = messages[0]
    if first["role"] in _SYSTEM and role == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    if role == "system":
        return [{"role": role, "content": text}, *messages]
    at = next((i for i, turn in enumerate(messages) if turn["role"] == role), None)
    if at is None:
        return [{"role": role, "content": text}, *messages]
    turn = {**messages[at], "content": f"{text}\n\n{messages[at]['content']}"}
    return [*messages[:at], turn, *messages[at + 1 :]]


def _line(tool: Mapping[str, Any]) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or "name" not in function:
        known = 'a tool is {"type": "function", "function": {"name": "f", "parameters": {...}}}'
        raise UserError(f"{tool!r:.200} is not a tool", known)
    return json.dumps(function, ensure_ascii=False)


def with_history(messages: Sequence[Message]) -> list[Message]:
    """The messages with calls and results as texts. What the user says next joins the results."""
    names: dict[Any, str] = {}
    shown: list[Message] = []
    follows_result = False
    for turn in messages:
        is_result = turn["role"] == "tool"
        if is_result:
            name = turn.get("name") or names.get(turn.get("tool_call_id")) or "the call"
            turn = {"role": "user", "content": f"Result of {name}: {turn['content']}"}
        elif calls := turn.get("tool_calls"):
            names |= {call.get("id"): call["function"]["name"] for call in calls}
            kept = {key: turn[key] for key in turn.keys() - {"tool_calls"}}
            turn = {**kept, "content": _text_of(turn.get("content"), calls)}
        if follows_result and turn["role"] == "user":
            joined = f"{shown[-1]['content']}\n{turn['content']}"
            shown[-1] = {**shown[-1], "content": joined}
        else:
            shown.append(turn)
        follows_result = is_result or (follows_result and turn["role"] == "user")
    return shown


def _text_of(content: str | None, calls: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join([*filter(None, [content]), *map(_call, calls)])


def _call(call: Mapping[str, Any]) -> str:
    """The call as the model was asked to write it; arguments that are text stay as they are."""
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {text}}}'
