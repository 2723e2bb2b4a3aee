"""openai-agents, whose default is /v1/responses: an object, a tool, and a stream."""

import asyncio
from functools import wraps
from typing import Any

import openai
import pytest
from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client

from tests.serving.clients.answers import QUESTION, City, weather
from tests.serving.clients.conftest import MODEL_NAME


@pytest.fixture(autouse=True)
def client_of_this_loop() -> None:
    """A client that has run in one event loop is of no use in another."""
    set_default_openai_client(openai.AsyncOpenAI(max_retries=0, timeout=300))


def agent(**options: Any) -> Agent[Any]:
    return Agent(name="helper", instructions="Be brief.", model=MODEL_NAME, **options)


def test_output_type_is_made() -> None:
    done = Runner.run_sync(agent(output_type=City), QUESTION)
    assert isinstance(done.final_output, City)
    assert done.context_wrapper.usage.output_tokens > 0


def test_required_tool_is_called() -> None:
    helper = agent(
        tools=[function_tool(weather)],
        model_settings=ModelSettings(tool_choice="required"),
        tool_use_behavior="stop_on_first_tool",
    )
    assert "sunny for" in Runner.run_sync(helper, QUESTION).final_output


def test_required_tool_comes_before_the_output_type() -> None:
    called: list[Any] = []

    @wraps(weather)
    def once(*given: Any, **named: Any) -> str:
        """A small model would call again and again."""
        called.append(given or named)
        return weather(*given, **named)

    helper = agent(
        output_type=City,
        tools=[function_tool(once, is_enabled=lambda *_: not called)],
        model_settings=ModelSettings(tool_choice="required"),
    )
    done = Runner.run_sync(helper, QUESTION)
    kinds = [item.type for item in done.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert isinstance(done.final_output, City)


def test_stream_has_deltas() -> None:
    async def read() -> list[str]:
        done = Runner.run_streamed(agent(output_type=City), QUESTION)
        events = [event async for event in done.stream_events()]
        assert isinstance(done.final_output, City)
        raw = [event.data for event in events if event.type == "raw_response_event"]
        return [event.delta for event in raw if event.type == "response.output_text.delta"]

    assert len(asyncio.run(read())) > 1
