"""litellm: chats of an OpenAI-like server, and Anthropic's messages through it."""

import asyncio
import json
from typing import Any

import litellm

from tests.serving.clients.answers import QUESTION, City, weather
from tests.serving.clients.conftest import MODEL_NAME, Target
from tests.serving.clients.test_openai import TOOL

CHAT: Any = {
    "model": f"openai/{MODEL_NAME}",
    "messages": [{"role": "user", "content": QUESTION}],
    "num_retries": 0,
    "timeout": 60,
}


def test_chat_and_its_stream(target: Target) -> None:
    options: Any = CHAT | {"api_base": f"{target.url}/v1", "max_tokens": 8, "temperature": 0}
    done: Any = litellm.completion(**options)
    assert done.usage.completion_tokens == 8
    parts = [
        chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **options)
    ]
    assert "".join(parts) == done.choices[0].message.content


def test_forced_tool_is_called() -> None:
    done: Any = litellm.completion(**CHAT, tools=[TOOL], tool_choice="required")
    (call,) = done.choices[0].message.tool_calls
    assert weather(**json.loads(call.function.arguments))
    assert done.choices[0].finish_reason == "tool_calls"


def test_response_format_is_held() -> None:
    done: Any = litellm.completion(**CHAT, response_format=City)
    assert City.model_validate_json(done.choices[0].message.content)


def test_too_long_a_prompt_is_distinguished_from_other_errors() -> None:
    long: Any = CHAT | {"messages": [{"role": "user", "content": "word " * 5000}]}
    try:
        litellm.completion(**long)
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("the prompt was taken")


def test_anthropic_messages_are_bridged() -> None:
    done: Any = asyncio.run(
        litellm.anthropic.messages.acreate(
            model=CHAT["model"], messages=CHAT["messages"], max_tokens=16
        )
    )
    assert done["content"][0]["text"] and 0 < done["usage"]["output_tokens"] <= 16
