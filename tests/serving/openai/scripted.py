"""Answers of given texts, in place of the model's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from snapexport.runtime.requests.request import OutputDelta, Request
from snapexport.serving.model import Model
from snapexport.serving.openai import api
from snapexport.serving.openai.writers import stream as streaming
from snapexport.serving.streams import Stream

TOOL_TEMPLATE = (
    "{% if tools %}[tools]{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{{ c.id }}</tool_call>{% endfor %}"
    "{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}{% endfor %}[assistant]"
)
"""Hermes's format and <think>."""
SHORT = "{% if tools %}{% endif %}{# tool_calls #}<tool_call><think>[assistant]"
"""The same formats with a short prompt."""
JSON = '{"name": "f", "arguments": {"a": "é"}}'
CALLS = f"<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{JSON}\n</tool_call>\n"
TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}


def script(
    monkeypatch: pytest.MonkeyPatch, text: str, reason: str = "stop", size: int = 3
) -> list[Sequence[Request]]:
    """Let every answer be this text, in outputs of `size` characters. Returns the requests."""
    seen: list[Sequence[Request]] = []

    async def merged(_: object, opened: Sequence[Stream]) -> streaming.Outputs:
        seen.append([stream.request for stream in opened])
        starts = range(0, len(text), size)
        for start in starts:
            for index in range(len(opened)):
                ends: Any = reason if start == starts[-1] else None
                yield index, OutputDelta(index, text[start : start + size], (7,), ends)

    monkeypatch.setattr(api, "merge", merged)
    return seen


def use_template(monkeypatch: pytest.MonkeyPatch, model: Model, source: str) -> None:
    """Let a model have another chat template."""
    from snapexport.runtime.chat.chat_prompts import ChatPrompts
    from snapexport.runtime.chat.chat_template import ChatTemplate
    from snapexport.runtime.chat.parsers.table import OutputFormat

    known = OutputFormat.of(source)
    chats = ChatPrompts(model.tokenizer, ChatTemplate(source, {}), model.limits, known)
    monkeypatch.setattr(model, "chat", chats)


def use_format(monkeypatch: pytest.MonkeyPatch, model: Model, known: Any) -> None:
    """Let a model's answers have another format."""
    assert model.chat
    monkeypatch.setattr(model, "chat", replace(model.chat, output_format=known))
