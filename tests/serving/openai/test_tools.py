"""Tools and reasoning in chats, as OpenAI's client sees them."""

import json
from typing import Any

import openai
import pytest

from snapexport.runtime.chat import chat_prompts
from snapexport.runtime.chat.parsers.table import OutputFormat
from tests.serving.openai.conftest import Served
from tests.serving.openai.scripted import (
    CALLS,
    JSON,
    SHORT,
    TOOL,
    TOOL_TEMPLATE,
    script,
    use_format,
    use_template,
)
from tests.serving.openai.test_messages import send

CHAT: Any = [{"role": "user", "content": "Hello"}]
OPTIONS: Any = {"model": "model", "messages": CHAT, "max_tokens": 9, "tools": [TOOL]}


@pytest.fixture(autouse=True)
def template(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    use_template(monkeypatch, served.model, SHORT)


def test_calls_content_and_reasoning_are_separated(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, CALLS)
    (choice,) = client.chat.completions.create(**OPTIONS).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert getattr(choice.message, "reasoning_content") == "Hm."  # noqa: B009
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.id.startswith("call_")
    assert (call.function.name, call.function.arguments) == ("f", '{"a": "é"}')


def test_stream_has_the_calls_name_first_and_joins_to_the_whole(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = f"{CALLS}<tool_call>{JSON}</tool_call>"
    for size in (1, 5, 1000):
        script(monkeypatch, two, size=size)
        chunks = list(client.chat.completions.create(stream=True, **OPTIONS))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert "".join(delta.content or "" for delta in deltas) == "I look."
        assert "".join(getattr(d, "reasoning_content", "") for d in deltas) == "Hm."
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        for index in (0, 1):
            head, *rest = [call for call in calls if call.index == index]
            assert head.id and head.type == "function" and head.function
            assert (head.function.name, head.function.arguments) == ("f", "")
            assert not any(
                one.id or one.type or (one.function and one.function.name) for one in rest
            )
            pieces = [one.function.arguments or "" for one in rest if one.function]
            assert "".join(pieces) == '{"a": "é"}' and all(pieces)
            assert len(pieces) > 1 or size > 5
        assert [call.index for call in calls] == sorted(call.index for call in calls)
        assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_without_content_a_call_has_null_content(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, f"<tool_call>{JSON}</tool_call>")
    message = client.chat.completions.create(**OPTIONS).choices[0].message
    assert message.content is None and len(message.tool_calls or []) == 1


def test_a_broken_call_is_content(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    text = CALLS[: CALLS.index('"a"')]
    script(monkeypatch, text, "length")
    (choice,) = client.chat.completions.create(**OPTIONS).choices
    assert choice.message.content == text.partition("</think>\n\n")[2]
    assert choice.finish_reason == "length" and choice.message.tool_calls is None


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_call_that_ends_within_its_arguments_has_what_came_of_them(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    script(monkeypatch, CALLS[: CALLS.index('"}}')], reason)
    (choice,) = client.chat.completions.create(**OPTIONS).choices
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.arguments == '{"a": "é'
    assert choice.finish_reason == reason
    chunks = list(client.chat.completions.create(stream=True, **OPTIONS))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    pieces = [call.function.arguments or "" for call in calls if call.function]
    assert "".join(pieces) == '{"a": "é'
    assert chunks[-1].choices[0].finish_reason == reason


def test_one_call_at_most_is_sent_without_parallel_calls(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, f"<tool_call>{JSON}</tool_call>" * 3)
    done = client.chat.completions.create(parallel_tool_calls=False, n=2, **OPTIONS)
    assert [len(choice.message.tool_calls or []) for choice in done.choices] == [1, 1]
    chunks = client.chat.completions.create(parallel_tool_calls=False, stream=True, **OPTIONS)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert {call.index for call in calls} == {0}
    assert "".join(c.function.arguments or "" for c in calls if c.function) == '{"a": "é"}'


def test_without_tools_no_text_is_a_call(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, CALLS)
    for changed in ({"tools": []}, {"tool_choice": "none"}):
        (choice,) = client.chat.completions.create(**OPTIONS | changed).choices
        assert choice.message.content == CALLS.partition("</think>\n\n")[2]
        assert choice.finish_reason == "stop" and choice.message.tool_calls is None


def test_tools_and_their_history_reach_the_template(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is sent back with all its fields; arguments become an object."""
    use_template(monkeypatch, served.model, TOOL_TEMPLATE)
    monkeypatch.setattr(chat_prompts, "encode", lambda text, *_: seen.append(text) or [1])
    seen: list[str] = []
    script(monkeypatch, CALLS)
    client = served.client()
    message = client.chat.completions.create(**OPTIONS).choices[0].message
    call_id = (message.tool_calls or [])[0].id
    result = {"role": "tool", "tool_call_id": call_id, "name": "f", "content": "4"}
    history: Any = [*CHAT, message.model_dump(), result]
    client.chat.completions.create(**OPTIONS | {"messages": history})
    tools = json.dumps([TOOL])
    assert seen[0] == f"[tools]{tools}[user]Hello[assistant]"
    assert seen[1] == (
        f"[tools]{tools}[user]Hello[assistant]I look.<think>Hm.</think>"
        f'<tool_call>f{{"a": "é"}}{call_id}</tool_call>[tool]4={call_id}[assistant]'
    )
    del history[1]["content"]
    client.chat.completions.create(**OPTIONS | {"messages": history, "tool_choice": "none"})
    assert seen[2].startswith("[user]Hello[assistant]<think>")


def test_special_tokens_are_kept_where_a_parser_needs_them(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = script(monkeypatch, "a")
    client.chat.completions.create(**OPTIONS)
    monkeypatch.setitem(vars(served.model.chat), "_special_texts", frozenset({"<tool_call>"}))
    client.chat.completions.create(**OPTIONS)
    client.chat.completions.create(**OPTIONS | {"tools": []})
    skips = [one.params.skip_special_tokens for (one,) in seen if one.params]
    assert skips == [True, False, True]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"tools": [TOOL] * 2}, "tools", "two functions of one name"),
        ({"tools": [named(f"f{n}") for n in range(129)]}, "tools", "at most 128"),
        ({"tools": [named("a b")]}, "tools.0.function.name", "match"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'function'"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": named("g")}, "tool_choice", "is not in tools"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"function_call": {"name": "f"}}, "function_call", "use tool_choice"),
        (
            {"messages": [{"role": "function", "name": "f", "content": "4"}]},
            "messages.0",
            "the older form",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [named("f")]}]},
            "messages.0",
            "the assistant's",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
            "messages.0.tool_calls.0.function",
            "required",
        ),
    ],
)
def test_wrong_tools_are_refused_by_their_field(
    client: openai.OpenAI, options: Any, param: str, says: str
) -> None:
    body: Any = OPTIONS | options
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        client.chat.completions.create(**{k: body[k] for k in OPTIONS}, extra_body=options)
    assert refused.value.param == param


PLAIN = "{% for m in messages %}{% if m.role != 'x' %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize("source", [PLAIN, "{{ tools }}" + PLAIN])
@pytest.mark.parametrize("text", [JSON, f"```json\n[{JSON}]\n```"])
def test_any_template_has_tools_in_every_api(
    served: Served, monkeypatch: pytest.MonkeyPatch, source: str, text: str
) -> None:
    """Whether it shows them or not, and where no parser knows its calls, streaming or not."""
    use_template(monkeypatch, served.model, source)
    monkeypatch.setattr(chat_prompts, "encode", lambda text, *_: seen.append(text) or [1])
    seen: list[str] = []
    script(monkeypatch, text)
    api = served.client()
    options: Any = {key: OPTIONS[key] for key in ("model", "tools")}
    spec = {"name": "f", "parameters": TOOL["function"]["parameters"]}
    responses: Any = {"model": "model", "input": "Hello", "tools": [{"type": "function", **spec}]}
    tools = [{"name": "f", "input_schema": spec["parameters"]}]
    messages: Any = {"model": "model", "messages": CHAT, "tools": tools, "max_tokens": 9}
    with api.chat.completions.stream(messages=CHAT, **options) as chat:
        (made,) = chat.get_final_completion().choices[0].message.tool_calls or []
    (call,) = api.responses.create(**responses).output
    used = json.loads(send(served, messages))["content"][0]
    assert (made.function.name, json.loads(made.function.arguments)) == ("f", {"a": "é"})
    assert call.type == "function_call" and json.loads(call.arguments) == {"a": "é"}
    assert used["type"] == "tool_use" and used["input"] == {"a": "é"}
    history: Any = [*CHAT, {"role": "assistant", "tool_calls": [made.model_dump()]}]
    history += [{"role": "tool", "tool_call_id": made.id, "content": "4"}]
    api.chat.completions.create(**options, messages=history)
    assert all('"name": "f", "parameters"' in one for one in seen) or "tools" in source
    assert seen[-1].endswith(f"{JSON}Result of f: 4")
    use_format(monkeypatch, served.model, OutputFormat.of(source, "none", "none"))
    assert api.chat.completions.create(**OPTIONS).choices[0].message.content == text


CHOSEN: Any = {
    "type": "function",
    "function": {
        "name": "pick",
        "strict": True,
        "parameters": {
            "properties": {"a": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"enum": [17, 23]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    "source", [SHORT.replace("<think>", ""), "{{ tools }}", SHORT + "<think>\n\n</think>\n\n"]
)
@pytest.mark.parametrize(
    ("choice", "parallel"), [("required", True), ("required", False), (named("pick"), True)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_forced_calls_are_of_the_tools_whatever_the_model_wants(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    choice: Any,
    parallel: bool,
    stream: bool,
) -> None:
    """Also where no parser knows the template, and where it says that thinking is off."""
    use_template(monkeypatch, served.model, source)
    monkeypatch.setattr(chat_prompts, "encode", lambda *_: [1, 2, 3])
    tools = [CHOSEN] if choice == "required" else [TOOL, CHOSEN]
    options = OPTIONS | {"tools": tools, "tool_choice": choice, "max_tokens": 1500}
    options |= {"parallel_tool_calls": parallel}
    done: Any = served.client().chat.completions.create(**options, stream=stream)
    choices = [chunk.choices[0] for chunk in done] if stream else [done.choices[0]]
    messages = [one.delta if stream else one.message for one in choices]
    told = [call for message in messages for call in message.tool_calls or []]
    calls: dict[int, list[Any]] = {}
    for at, call in enumerate(told):
        calls.setdefault(call.index if stream else at, []).append(call.function)
    assert len(calls) == 1 or (choice == "required" and parallel)
    for parts in calls.values():
        assert [part.name for part in parts if part.name] == ["pick"]
        assert json.loads("".join(part.arguments for part in parts)) in ({"a": 17}, {"a": 23})
    assert choices[-1].finish_reason == "tool_calls"
    assert not any(message.content for message in messages)


def test_a_forced_call_and_another_form_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prescribe two forms") as refused:
        client.chat.completions.create(
            tool_choice="required", extra_body={"guided_regex": "a"}, **OPTIONS
        )
    assert refused.value.param == "tool_choice"


ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [named("pick")]},
}
AB: Any = {
    "type": "json_schema",
    "json_schema": {"name": "ab", "strict": True, "schema": {"enum": ["a", "b"]}},
}


@pytest.mark.parametrize("choice", ["required", ALLOWED], ids=["required", "allowed"])
def test_a_response_format_is_not_a_forced_calls(
    served: Served, monkeypatch: pytest.MonkeyPatch, choice: Any
) -> None:
    """It is that of a later answer. Of tools, the allowed ones are called."""
    use_template(monkeypatch, served.model, SHORT.replace("<think>", ""))
    monkeypatch.setattr(chat_prompts, "encode", lambda *_: [1, 2, 3])
    tools = [CHOSEN] if choice == "required" else [TOOL, CHOSEN]
    options = OPTIONS | {"tools": tools, "max_tokens": 1500, "response_format": AB}
    done = served.client().chat.completions.create(**options, tool_choice=choice)
    (call,) = done.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.name == "pick"


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("prompt", ["", "<think>\n\n</think>\n\n"])
def test_an_answer_with_tools_is_of_its_form_or_a_call(
    served: Served, monkeypatch: pytest.MonkeyPatch, prompt: str, calls: bool
) -> None:
    use_template(monkeypatch, served.model, SHORT + prompt)
    monkeypatch.setattr(chat_prompts, "encode", lambda *_: [1, 2, 3])
    assert served.model.tokenizer
    (begin,) = served.model.tokenizer.encode("<").ids
    options = OPTIONS | {"tools": [CHOSEN], "max_tokens": 1500, "response_format": AB}
    more: Any = {"logit_bias": {str(begin): 100 if calls else -100}, "extra_body": {"seed": 3}}
    if not prompt:
        more["extra_body"]["chat_template_kwargs"] = {"enable_thinking": False}
    (choice,) = served.client().chat.completions.create(**options, **more).choices
    assert bool(choice.message.tool_calls) is calls
    assert calls or json.loads(choice.message.content or "") in ("a", "b")
    assert choice.finish_reason == ("tool_calls" if calls else "stop")


def test_a_schema_that_cannot_be_enforced_is_refused(client: openai.OpenAI) -> None:
    """The tool's own names can't leave the grammar either."""
    bad = {"type": "object", "properties": {"a": {"pattern": "(?<=b)a"}}, "required": ["a"]}
    function = {"name": "f", "strict": True, "parameters": bad}
    tools: Any = [{"type": "function", "function": function}]
    with pytest.raises(openai.BadRequestError, match="can't be compiled") as refused:
        client.chat.completions.create(**OPTIONS | {"tools": tools, "tool_choice": "required"})
    assert refused.value.param == "tools"


def deep(levels: int) -> Any:
    return {"type": "object", "properties": {"a": deep(levels - 1)}} if levels else {"type": "null"}


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [named(f"f{n}") for n in range(5000)]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": deep(40)}}]},
        {"tools": [TOOL], "tool_choice": "required", "max_tokens": 0},
        {
            "tool_choice": "required",
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"properties": {"a": {"enum": ["b" * 60_000, "c" * 90_000]}}},
                    },
                }
            ],
        },
        pytest.param(
            {
                "response_format": {"type": "json_object"},
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "parameters": {"properties": {"a": {"multipleOf": 99999999}}},
                        },
                    }
                ],
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["5000 tools", "40 levels", "no tokens", "a large grammar", "a form beside a slow one"],
)
def test_hostile_tools_get_a_400_soon_and_neighbours_go_on(
    served: Served, client: openai.OpenAI, options: Any
) -> None:
    stream = client.completions.create(model="model", prompt="a", max_tokens=200, stream=True)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**OPTIONS | options)
    assert len(str(refused.value)) < 2000
    assert sum(1 for _ in stream) > 0
