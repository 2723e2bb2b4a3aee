"""llama-index's client of OpenAI-like servers."""

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.serving.clients.answers import QUESTION, City, weather
from tests.serving.clients.conftest import MODEL_NAME, Target


@pytest.fixture
def llm(target: Target) -> OpenAILike:
    return OpenAILike(
        model=MODEL_NAME,
        api_base=f"{target.url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        max_tokens=64,
        timeout=300,
    )


def test_chat_streams(llm: OpenAILike) -> None:
    chunks = list(llm.stream_chat([ChatMessage(content=QUESTION)], max_tokens=8))
    assert len(chunks) > 1 and chunks[-1].message.content


def test_structured_output_is_an_object(llm: OpenAILike) -> None:
    answer = llm.as_structured_llm(City).chat([ChatMessage(content=QUESTION)])
    assert isinstance(answer.raw, City)


def test_required_tool_is_called(llm: OpenAILike) -> None:
    tool = FunctionTool.from_defaults(weather)
    answer = llm.chat_with_tools([tool], QUESTION, tool_required=True)
    (call,) = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather" and weather(**call.tool_kwargs)
