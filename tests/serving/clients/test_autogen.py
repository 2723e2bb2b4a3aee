"""AutoGen's assistant, whose messages have names: an answer's form, and a tool."""

import asyncio
import json
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import StructuredMessage
from autogen_core import FunctionCall
from autogen_core.models import ModelFamily, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from tests.serving.clients.answers import QUESTION, City, weather
from tests.serving.clients.conftest import MODEL_NAME, Target

ABILITIES: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": ModelFamily.UNKNOWN,
}


def client(target: Target, **more: Any) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model=MODEL_NAME, base_url=f"{target.url}/v1", model_info=ABILITIES, **more
    )


def answer(target: Target, max_tokens: int, **options: Any) -> Any:
    assistant = AssistantAgent("helper", client(target, max_tokens=max_tokens), **options)
    return asyncio.run(assistant.run(task=QUESTION)).messages[-1]


def test_assistant_answers_and_counts(target: Target) -> None:
    found = answer(target, 8)
    assert found.content and found.models_usage.completion_tokens == 8


def test_assistant_gives_an_object(target: Target) -> None:
    found = answer(target, 64, output_content_type=City)
    assert isinstance(found, StructuredMessage) and isinstance(found.content, City)


def test_assistant_offers_its_tool(target: Target) -> None:
    """It can't ask for a call: its model decides."""
    assert answer(target, 8, tools=[weather]).content


def test_required_tool_is_called(target: Target) -> None:
    tool = FunctionTool(weather, description="The weather of a city")
    asked = [UserMessage(content=QUESTION, source="user")]
    done = asyncio.run(client(target).create(asked, tools=[tool], tool_choice="required"))
    (call,) = done.content
    assert done.finish_reason == "function_calls"
    assert isinstance(call, FunctionCall) and weather(**json.loads(call.arguments))
