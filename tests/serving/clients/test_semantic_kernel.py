"""semantic-kernel's agent with a name, an answer's form, and a function of a plugin."""

import asyncio
from typing import Any

import openai
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory, FunctionCallContent
from semantic_kernel.functions import KernelFunctionFromMethod, kernel_function

from tests.serving.clients.answers import QUESTION, City, weather
from tests.serving.clients.conftest import MODEL_NAME


def service() -> OpenAIChatCompletion:
    return OpenAIChatCompletion(MODEL_NAME, async_client=openai.AsyncOpenAI(timeout=300))


def history() -> ChatHistory:
    messages = ChatHistory()
    messages.add_user_message(QUESTION)
    return messages


def test_named_agent_answers_twice() -> None:
    async def turns() -> list[Any]:
        agent = ChatCompletionAgent(service=service(), name="helper", instructions="Be brief.")
        first = await agent.get_response(QUESTION)
        return [first, await agent.get_response("And of Italy?", thread=first.thread)]

    assert all(str(answer.content) for answer in asyncio.run(turns()))


def test_response_format_gives_an_object() -> None:
    settings = OpenAIChatPromptExecutionSettings(response_format=City)
    (answer,) = asyncio.run(service().get_chat_message_contents(history(), settings))
    assert City.model_validate_json(answer.content)


def test_required_function_is_called() -> None:
    kernel = Kernel()
    kernel.add_function("plugin", KernelFunctionFromMethod(kernel_function(weather)))
    choice = FunctionChoiceBehavior.Required(auto_invoke=False)
    settings = OpenAIChatPromptExecutionSettings(function_choice_behavior=choice)
    asked = service().get_chat_message_contents(history(), settings, kernel=kernel)
    (answer,) = asyncio.run(asked)
    (call,) = [item for item in answer.items if isinstance(item, FunctionCallContent)]
    assert call.function_name == "weather" and call.to_kernel_arguments()
