"""langchain-openai, as LangGraph's agents use it."""

from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from tests.serving.clients.answers import QUESTION, City, weather
from tests.serving.clients.conftest import MODEL_NAME


@pytest.fixture
def chat() -> ChatOpenAI:
    return ChatOpenAI(model=MODEL_NAME, max_retries=0, timeout=300, max_completion_tokens=64)


def test_bound_tool_is_called(chat: ChatOpenAI) -> None:
    answer = chat.bind_tools([weather], tool_choice="any").invoke(QUESTION)
    (call,) = answer.tool_calls
    assert call["name"] == "weather" and weather(**call["args"]) and not answer.invalid_tool_calls
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    assert answer.usage_metadata and answer.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_an_object(chat: ChatOpenAI, method: Any) -> None:
    assert isinstance(chat.with_structured_output(City, method=method).invoke(QUESTION), City)


def test_stream_has_chunks_and_usage(chat: ChatOpenAI) -> None:
    chunks = list(chat.bind(max_completion_tokens=8).stream(QUESTION, stream_usage=True))
    assert len([chunk for chunk in chunks if chunk.content]) > 1
    whole = sum(chunks[1:], chunks[0])
    assert whole.usage_metadata and whole.usage_metadata["output_tokens"] == 8


def test_streamed_tool_call_is_joined(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([weather], tool_choice="weather")
    chunks = list(bound.stream(QUESTION))
    (call,) = sum(chunks[1:], chunks[0]).tool_calls
    assert weather(**call["args"])
