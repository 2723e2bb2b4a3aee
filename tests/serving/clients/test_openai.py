"""OpenAI's own client for Python."""

import json
from typing import Any

import openai
import pytest

from tests.serving.clients.answers import QUESTION, City, weather
from tests.serving.clients.conftest import MODEL_NAME

CHAT: Any = {"model": MODEL_NAME, "messages": [{"role": "user", "content": QUESTION}]}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": weather.__doc__,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
def client() -> openai.OpenAI:
    return openai.OpenAI(max_retries=0, timeout=300)


def test_chat_has_text_logprobs_and_usage(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        **CHAT, max_completion_tokens=8, logprobs=True, top_logprobs=3
    )
    (choice,) = done.choices
    assert choice.message.content and choice.finish_reason in ("stop", "length")
    assert choice.logprobs and choice.logprobs.content
    assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content)
    assert done.usage and done.usage.completion_tokens == 8 == len(choice.logprobs.content)


def test_stream_joins_to_the_chat(client: openai.OpenAI) -> None:
    options: Any = CHAT | {"max_tokens": 8, "temperature": 0}
    text = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == text and len([part for part in parts if part]) > 1
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 8


def test_completion(client: openai.OpenAI) -> None:
    done = client.completions.create(model=MODEL_NAME, prompt=["One,", "Two,"], max_tokens=3, n=2)
    assert len(done.choices) == 4 and all(choice.text for choice in done.choices)


def test_parse_gives_an_object(client: openai.OpenAI) -> None:
    done = client.chat.completions.parse(**CHAT, response_format=City)
    assert isinstance(done.choices[0].message.parsed, City)
    assert done.choices[0].finish_reason == "stop"


def test_json_object_begins_as_one(client: openai.OpenAI) -> None:
    """Where it ends is up to the model."""
    options: Any = CHAT | {"response_format": {"type": "json_object"}, "max_tokens": 8}
    content = client.chat.completions.create(**options).choices[0].message.content
    assert content and content.startswith("{")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_forced_tool_is_called(client: openai.OpenAI, choice: Any) -> None:
    done = client.chat.completions.create(**CHAT, tools=[TOOL], tool_choice=choice).choices[0]
    (call,) = done.message.tool_calls or []
    assert call.type == "function" and call.function.name == "weather"
    assert weather(**json.loads(call.function.arguments))
    assert done.finish_reason == "tool_calls"


def test_streamed_tool_call_is_joined_by_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**CHAT, tools=[TOOL], tool_choice="required") as stream:
        final = stream.get_final_completion().choices[0]
    (call,) = final.message.tool_calls or []
    assert weather(**call.function.parsed_arguments)  # type: ignore[arg-type]
    assert final.finish_reason == "tool_calls"


def test_conversation_goes_on_after_a_call(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(**CHAT, tools=[TOOL], tool_choice="required")
    message = first.choices[0].message
    result = {
        "role": "tool",
        "tool_call_id": (message.tool_calls or [])[0].id,
        "content": "sunny",
    }
    options: Any = CHAT | {"messages": [*CHAT["messages"], message, result], "max_tokens": 8}
    assert client.chat.completions.create(**options, tools=[TOOL]).choices[0].message


def test_response_is_parsed(client: openai.OpenAI) -> None:
    response = client.responses.parse(model=MODEL_NAME, input=QUESTION, text_format=City)
    assert isinstance(response.output_parsed, City)
    assert response.usage and response.usage.output_tokens > 0


def test_response_streams_text(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL_NAME, input=QUESTION, text_format=City) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text and isinstance(final.output_parsed, City)


def test_too_long_a_prompt_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length") as raised:
        client.completions.create(model=MODEL_NAME, prompt="word " * 5000)
    assert raised.value.code == "context_length_exceeded"
