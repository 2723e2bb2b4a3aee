"""pydantic-ai: an agent with a tool, and its ways to an object."""

from typing import Any

import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel

from tests.serving.clients.answers import QUESTION, City
from tests.serving.clients.conftest import MODEL_NAME


@pytest.mark.parametrize("output", [City, ToolOutput(City), NativeOutput(City)])
def test_agent_gives_an_object(output: Any) -> None:
    agent = Agent(OpenAIChatModel(MODEL_NAME), output_type=output, retries=0)
    done = agent.run_sync(QUESTION)
    assert isinstance(done.output, City)
    assert done.usage.output_tokens > 0


def test_agent_streams_text() -> None:
    agent = Agent(OpenAIChatModel(MODEL_NAME), model_settings={"max_tokens": 8})
    with agent.run_stream_sync(QUESTION) as done:
        assert len(list(done.stream_text(delta=True, debounce_by=None))) > 1
