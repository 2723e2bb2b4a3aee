"""pydantic-ai: its three ways to the server, and its ways to an object."""

from collections.abc import Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from tests.serving.clients.answers import QUESTION, City
from tests.serving.clients.conftest import MODEL_NAME, Target


def chat(target: Target) -> Any:
    return OpenAIChatModel(MODEL_NAME)


def responses(target: Target) -> Any:
    return OpenAIResponsesModel(MODEL_NAME)


def messages(target: Target) -> Any:
    client = AsyncAnthropic(base_url=target.url, api_key="none", max_retries=0, timeout=300)
    return AnthropicModel(MODEL_NAME, provider=AnthropicProvider(anthropic_client=client))


@pytest.mark.parametrize(
    ("model", "output"),
    [(chat, City), (chat, NativeOutput(City)), (responses, City), (messages, City)],
)
def test_agent_gives_an_object(target: Target, model: Callable[[Target], Any], output: Any) -> None:
    done = Agent(model(target), output_type=output, retries=0).run_sync(QUESTION)
    assert isinstance(done.output, City)
    assert done.usage.output_tokens > 0


def test_agent_streams_text() -> None:
    agent = Agent(OpenAIChatModel(MODEL_NAME), model_settings={"max_tokens": 8})
    with agent.run_stream_sync(QUESTION) as done:
        assert len(list(done.stream_text(delta=True, debounce_by=None))) > 1
