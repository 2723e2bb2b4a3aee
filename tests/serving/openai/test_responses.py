"""/v1/responses as OpenAI's client sees it: items, events, and the chat that a body stands for."""

from typing import Any

import openai
import pytest
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)

from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.openai import api
from snapexport.serving.openai.bodies.responses import messages_of
from snapexport.serving.openai.writers import stream as streaming
from snapexport.serving.worker import Failure, GenerationError
from tests.serving.openai.conftest import Served
from tests.serving.openai.scripted import CALLS, JSON, SHORT, script, use_template

UNKNOWN: Any = {"type": "json_schema", "name": "f", "schema": {"type": "nope"}, "strict": True}
TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
OPTIONS: Any = {"model": "model", "input": "Hello", "tools": [TOOL]}


@pytest.fixture(autouse=True)
def template(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    use_template(monkeypatch, served.model, SHORT)


def test_output_has_reasoning_a_message_and_a_call(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, CALLS)
    response = client.responses.create(**OPTIONS)
    assert (response.status, response.output_text) == ("completed", "I look.")
    reasoning, message, call = response.output
    assert isinstance(reasoning, ResponseReasoningItem) and reasoning.content
    assert reasoning.content[0].text == "Hm."
    assert isinstance(message, ResponseOutputMessage)
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("f", '{"a": "é"}')
    assert call.call_id.startswith("call_")
    assert response.usage and response.usage.total_tokens > response.usage.output_tokens > 0


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_events_come_in_order_and_join_to_the_response(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    script(monkeypatch, f"{CALLS}<tool_call>{JSON}</tool_call>", size=size)
    events = list(client.responses.create(stream=True, **OPTIONS))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    order = [kind for place, kind in enumerate(kinds) if kinds[place - 1 : place] != [kind]]
    text = ["content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
    call = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert order == [
        "created",
        "in_progress",
        "output_item.added",
        *[kind.format("reasoning_text") for kind in text],
        "output_item.added",
        *[kind.format("output_text") for kind in text],
        *["output_item.added", *call] * 2,
        "completed",
    ]
    last = events[-1]
    assert isinstance(last, ResponseCompletedEvent)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == last.response.output_text == "I look."
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    whole = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
    assert "".join(pieces) == "".join(whole) == '{"a": "é"}' * 2
    assert len(pieces) > 2 or size > 5
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == last.response.output
    with client.responses.stream(**OPTIONS) as stream:
        assert stream.get_final_response().output_text == "I look."


def test_an_answer_that_is_cut_is_incomplete(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "Hi", "length")
    response = client.responses.create(**OPTIONS, max_output_tokens=1)
    assert response.status == "incomplete" and response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(stream=True, **OPTIONS))
    assert events[-1].type == "response.incomplete"


def test_a_call_that_is_cut_is_incomplete(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, CALLS[: CALLS.index('"}}')], "length")
    call = client.responses.create(**OPTIONS).output[-1]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.status, call.arguments) == ("incomplete", '{"a": "é')
    events = list(client.responses.create(stream=True, **OPTIONS))
    kinds = ["function_call_arguments.done", "output_item.done", "incomplete"]
    assert [event.type for event in events[-3:]] == [f"response.{kind}" for kind in kinds]


def test_the_output_can_be_sent_back(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, CALLS)
    output = client.responses.create(**OPTIONS).output
    call = output[-1]
    assert isinstance(call, ResponseFunctionToolCall)
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        *[item.model_dump() for item in output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "4"},
    ]
    function = {"name": "f", "arguments": '{"a": "é"}'}
    assert messages_of(items) == [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "I look.",
            "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "4"},
    ]
    assert client.responses.create(**OPTIONS | {"input": items}, instructions="Brief.").output


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"background": True}, "background", "answered at once"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored"),
        ({"conversation": "conv_1"}, "conversation", "not stored"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0", "not stored"),
        ({"input": [{"type": "computer_call"}]}, "input.0", "'computer_call'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0",
            "'input_image'",
        ),
        ({"input": [{"role": "user", "content": 4}]}, "input.0.content", "a text, or a list"),
        ({"input": []}, "input", "at least 1"),
        ({"tools": [{"type": "web_search"}]}, "tools.0", "'web_search'"),
        ({"tools": [TOOL] * 2}, "tools", "one name"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice", "'file_search'"),
        ({"include": ["nope"]}, "include.0", "Input should be"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"input": [{"role": "zz", "content": "a"}]}, "input", "Input should be|input"),
        ({"text": {"format": UNKNOWN}}, "text.format", "compiled"),
        ({"extra_body": {"nope": 1}}, "nope", "not supported"),
    ],
)
def test_wrong_bodies_are_refused_by_their_field(
    client: openai.OpenAI, options: Any, param: str, says: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        client.responses.create(**OPTIONS | options)
    assert refused.value.param == param


def test_a_store_has_no_effect(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, "Hi")
    body: Any = {"include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}}
    response = client.responses.create(**OPTIONS, store=True, extra_body=body)
    assert (response.store, response.metadata) == (False, {"a": "b"})


@pytest.mark.parametrize("stream", [False, True])
def test_every_token_of_a_text_has_its_log_probability(client: openai.OpenAI, stream: bool) -> None:
    options: Any = OPTIONS | {"max_output_tokens": 8, "top_logprobs": 2, "temperature": 0}
    done: Any = client.responses.create(**options, stream=stream)
    if stream:
        *events, last = done
        told = [one for event in events for one in getattr(event, "logprobs", None) or []]
        done = last.response
    (message,) = done.output
    (part,) = message.content
    assert len(part.logprobs) == 8 and all(len(one.top_logprobs) == 2 for one in part.logprobs)
    written = b"".join(bytes(one.bytes) for one in part.logprobs)
    assert written.decode(errors="replace") == part.text
    if stream:
        assert [one.token for one in told[:8]] == [one.token for one in part.logprobs]


def test_input_tokens_are_counted(served: Served, client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(**OPTIONS)
    response = client.responses.create(**OPTIONS, max_output_tokens=1)
    assert response.usage and counted.input_tokens == response.usage.input_tokens


def test_a_failure_within_a_stream_is_its_last_event(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> streaming.Outputs:
        yield 0, OutputDelta(0, "Hi", (7,))
        raise GenerationError(Failure("the backend failed", "internal"))

    monkeypatch.setattr(api, "merge", failing)
    *_, last = client.responses.create(stream=True, **OPTIONS)
    assert last.type == "response.failed" and last.response.error
    assert last.response.error.message == "the backend failed"
