"""Anthropic's client."""

from typing import Any

import anthropic
import pytest

from tests.serving.clients.answers import QUESTION, weather
from tests.serving.clients.conftest import MODEL_NAME, Target
from tests.serving.clients.test_openai import TOOL

CHAT: Any = {"model": MODEL_NAME, "messages": [{"role": "user", "content": QUESTION}]}
FUNCTION: Any = {
    "name": "weather",
    "description": weather.__doc__,
    "input_schema": TOOL["function"]["parameters"],
}


@pytest.fixture
def client(target: Target) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=target.url, api_key="none", max_retries=0, timeout=300)


def test_message_has_text_and_usage(client: anthropic.Anthropic) -> None:
    done = client.messages.create(**CHAT, system="Be brief.", max_tokens=8)
    assert done.content[0].type == "text" and done.stop_reason in ("end_turn", "max_tokens")
    assert done.usage.output_tokens == 8 and done.usage.input_tokens > 0


def test_stream_joins(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**CHAT, max_tokens=8) as stream:
        parts = list(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    assert len(parts) > 1 and "".join(parts) == final.content[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_forced_tool_is_used(client: anthropic.Anthropic, choice: Any) -> None:
    done = client.messages.create(**CHAT, tools=[FUNCTION], tool_choice=choice, max_tokens=64)
    (use,) = [block for block in done.content if block.type == "tool_use"]
    assert use.name == "weather" and weather(**use.input) and done.stop_reason == "tool_use"


def test_streamed_tool_use_is_joined(client: anthropic.Anthropic) -> None:
    options: Any = CHAT | {"tools": [FUNCTION], "tool_choice": {"type": "any"}, "max_tokens": 64}
    with client.messages.stream(**options) as stream:
        final = stream.get_final_message()
    (use,) = [block for block in final.content if block.type == "tool_use"]
    assert weather(**use.input)


def test_tool_runner_sends_the_history_with_the_result(client: anthropic.Anthropic) -> None:
    options: Any = CHAT | {"tool_choice": {"type": "any"}, "max_tokens": 64}
    tool = anthropic.beta_tool(weather)
    runner = client.beta.messages.tool_runner(**options, tools=[tool], max_iterations=2)
    first, second = list(runner)
    assert first.stop_reason == second.stop_reason == "tool_use"
    assert second.usage.input_tokens > first.usage.input_tokens
