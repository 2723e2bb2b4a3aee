"""/v1/messages in Anthropic's form: blocks, events, and the chat that a body stands for."""

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from snapexport.serving.openai.bodies.messages import MessagesRequest
from snapexport.serving.openai.http.access import Access
from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.conftest import Served
from tests.serving.openai.scripted import CALLS, JSON, SHORT, script, use_template
from tests.serving.process import SECONDS

TOOL = {"name": "f", "description": "F.", "input_schema": {"type": "object"}}
ASKED = [{"role": "user", "content": "Hello"}]
BODY: dict[str, Any] = {"model": "model", "max_tokens": 9, "messages": ASKED, "tools": [TOOL]}
BLOCKS = [
    {"type": "thinking", "thinking": "Hm.", "signature": ""},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "name": "f", "input": {"a": "é"}},
]


SCRIPTED = byte_level().decode([7])
"""The text of the token that a scripted output has."""


@pytest.fixture(autouse=True)
def template(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    use_template(monkeypatch, served.model, SHORT)


def send(served: Served, body: Any, path: str = "") -> Any:
    headers = {"Content-Type": "application/json", "x-api-key": "none"}
    url = f"{served.url}/v1/messages{path}"
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=SECONDS) as answer:
        return answer.read().decode()


def events(served: Served, body: Any) -> list[Any]:
    """The events of a stream, whose names are their types."""
    found = []
    for event in send(served, body | {"stream": True}).strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_content_has_thinking_text_and_a_tool_use(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, CALLS)
    message = json.loads(send(served, BODY))
    assert message["content"][2].pop("id").startswith("call_")
    assert message["content"] == BLOCKS
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert (message["type"], message["role"]) == ("message", "assistant")
    assert message["usage"]["input_tokens"] == len(SHORT_PROMPT)
    assert message["usage"]["output_tokens"] > 0


SHORT_PROMPT = "<tool_call><think>[assistant]"


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_events_come_in_order_and_join_to_the_message(
    served: Served, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    script(monkeypatch, f"{CALLS}<tool_call>{JSON}</tool_call>", size=size)
    told = events(served, BODY)
    kinds = [event["type"] for event in told]
    order = [kind for place, kind in enumerate(kinds) if kinds[place - 1 : place] != [kind]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert order == ["message_start", *block * 4, "message_delta", "message_stop"]
    blocks: list[Any] = []
    pieces: dict[int, str] = {}
    for event in told:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        if event["type"] == "content_block_delta":
            kind, text = event["delta"].items()
            name = kind[1].removesuffix("_delta")
            if name == "input_json":
                assert blocks[-1]["input"] == {}
                pieces[event["index"]] = pieces.get(event["index"], "") + text[1]
            else:
                blocks[-1][name] += text[1]
    for index, text in pieces.items():
        blocks[index]["input"] = json.loads(text)
    assert blocks.pop(2).pop("id") != blocks[2].pop("id")
    assert blocks == BLOCKS
    assert told[0]["message"]["content"] == []
    assert told[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_a_call_that_is_cut_has_no_input_but_its_text_in_a_stream(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, CALLS[: CALLS.index('"}}')], "length")
    message = json.loads(send(served, BODY))
    assert message["content"][-1]["input"] == {}
    assert message["stop_reason"] == "max_tokens"
    told = [event["delta"] for event in events(served, BODY) if "delta" in event]
    assert "".join(delta.get("partial_json", "") for delta in told) == '{"a": "é'


@pytest.mark.parametrize(
    ("body", "reason", "told"),
    [
        ({}, "stop", ("end_turn", None)),
        ({}, "length", ("max_tokens", None)),
        ({"stop_sequences": ["zz", SCRIPTED]}, "stop", ("stop_sequence", SCRIPTED)),
        ({"stop_sequences": ["zz"]}, "stop", ("end_turn", None)),
    ],
)
def test_the_reason_of_the_end_is_anthropics(
    served: Served, monkeypatch: pytest.MonkeyPatch, body: Any, reason: str, told: Any
) -> None:
    script(monkeypatch, "a", reason)
    message = json.loads(send(served, BODY | body))
    assert (message["stop_reason"], message["stop_sequence"]) == told


def chat(**changed: Any) -> Any:
    return MessagesRequest.model_validate(BODY | changed).as_chat()


def test_blocks_become_the_chats_messages() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "4"}],
    }
    turns = [
        *ASKED,
        {"role": "assistant", "content": [BLOCKS[0], BLOCKS[1], call]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?", "cache_control": {}}]},
    ]
    body = chat(messages=turns, system=[{"type": "text", "text": "Brief."}], stop_sequences=["x"])
    messages = [turn.model_dump(exclude_none=True) for turn in body.messages]
    function = {"name": "f", "arguments": {"a": 1}}
    assert messages == [
        {"role": "system", "content": "Brief."},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "user", "content": "So?"},
    ]
    assert (body.max_tokens, body.stop, body.add_generation_prompt) == (9, ["x"], True)
    assert body.tools[0].as_json()["function"] == {
        "name": "f",
        "description": "F.",
        "parameters": {"type": "object"},
    }


def test_fields_become_the_chats() -> None:
    begun = [*ASKED, {"role": "assistant", "content": "The"}]
    assert chat(messages=begun).continue_final_message
    assert chat(tool_choice={"type": "any"}).tool_choice == "required"
    assert chat(tool_choice={"type": "tool", "name": "f"}).forced_tools
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert not chat(tool_choice=one).parallel_tool_calls
    assert chat(thinking={"type": "disabled"}).as_runtimes().options == {"enable_thinking": False}
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    assert chat(output_config={"format": schema}).form()


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        ({"max_tokens": None}, 400, "max_tokens: Field required"),
        ({"model": "other"}, 404, "not served"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "must have a text"),
        ({"messages": [{"role": "robot", "content": "a"}]}, 400, "messages.0.role"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "tools.0.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "no tools of its own"),
        ({"nope": 1}, 400, "nope is not supported"),
        ({"messages": [{"role": "user", "content": []}]}, 200, ""),
        ({"tools": [{"type": None, "name": "f", "input_schema": {}}], "mcp_servers": []}, 200, ""),
    ],
)
def test_errors_have_anthropics_form(
    served: Served, monkeypatch: pytest.MonkeyPatch, changed: Any, status: int, says: str
) -> None:
    script(monkeypatch, "a")
    if status == 200:
        assert send(served, BODY | changed)
        return
    with pytest.raises(HTTPError) as refused:
        send(served, BODY | changed)
    error = json.load(refused.value)
    assert refused.value.code == status and says in error["error"]["message"]
    kind = {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert (error["type"], error["error"]["type"]) == ("error", kind)


def test_threads_are_refused_so_that_the_sdk_sends_the_history(served: Served) -> None:
    with pytest.raises(HTTPError) as refused:
        send(served, BODY | {"thread": {"type": "create"}})
    details = json.load(refused.value)["error"]["details"]
    assert details == {"error_code": "thread_unsupported_request"}


def test_tokens_of_a_prompt_are_counted(served: Served) -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    assert json.loads(send(served, body, "/count_tokens")) == {"input_tokens": len(SHORT_PROMPT)}


def test_a_key_may_come_in_the_header_of_anthropics_clients() -> None:
    from starlette.datastructures import Headers

    def refused(**headers: str) -> bool:
        kind = {"content-type": "application/json"}
        given = Headers({name.replace("_", "-"): one for name, one in headers.items()} | kind)
        return Access(api_key="k").problem("POST", "/v1/messages", given) is not None

    assert not refused(x_api_key="k")
    assert not refused(authorization="Bearer k")
    assert refused(x_api_key="Bearer k") and refused(x_api_key="") and refused(authorization="k")
