"""Parsers of outputs: each format's own, cut anywhere, and what looks like a call and is none."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from snapexport.runtime.chat.parsers.parser import (
    Call,
    CallArguments,
    CallBegun,
    CallEnded,
    Content,
    Event,
    Reasoning,
    join_texts,
)
from snapexport.runtime.chat.parsers.table import (
    HARMONY,
    TOOL_FORMATS,
    OutputFormat,
)

TOOLS: dict[str, Any] = {
    "get_weather": {
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "deep": {}}
    },
    "now": {},
}
WEATHER = Call("get_weather", '{"city": "Zürich [\\"1\\"]"}')
DAYS = Call("get_weather", '{"city": "Bern", "days": 3, "deep": {"a": [1, true, null]}}')
NOW = Call("now", "{}")
JSON = '{"name": "get_weather", "arguments": {"city": "Zürich [\\"1\\"]"}}'
LONG = '{"city": "Bern", "days": 3, "deep": {"a": [1, true, null]}}'

CALLS: list[tuple[str, str, list[Event]]] = [
    ("hermes", f"<tool_call>\n{JSON}\n</tool_call>", [WEATHER]),
    ("hermes", f"I look.\n\n<tool_call>{JSON}</tool_call>", [Content("I look."), WEATHER]),
    (
        "hermes",
        f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n"
        '{"name": "now", "arguments": {}}\n</tool_call>',
        [WEATHER, NOW],
    ),
    ("hermes", f"<tool_call>{JSON}</tool_call>\nDone. ", [WEATHER, Content("Done. ")]),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": "</tool_call>{"}}</tool_call>',
        [Call("now", '{"a": "</tool_call>{"}')],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>"
        '\n3\n</parameter>\n<parameter=deep>\n{"a": [1, true, null]}\n</parameter>\n</function>\n'
        "</tool_call>",
        [DAYS],
    ),
    (
        "qwen3_coder",
        "<function=get_weather>\n<parameter=city>\n1\n\n2\n</parameter>\n</function>",
        [Call("get_weather", '{"city": "1\\n\\n2"}')],
    ),
    (
        "qwen3_coder",
        "Now.\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [Content("Now."), NOW],
    ),
    ("llama3_json", JSON.replace("arguments", "parameters"), [WEATHER]),
    ("llama3_json", "<|python_tag|>" + JSON.replace("arguments", "parameters"), [WEATHER]),
    ("llama3_json", f'{JSON}; {{"name": "now", "parameters": {{}}}}', [WEATHER, NOW]),
    (
        "llama3_json",
        f'{JSON}\n{{"name": "now", "parameters": {{}}}} So {{x}}.',
        [WEATHER, NOW, Content("So {x}.")],
    ),
    ("llama3_json", f"So: {JSON}", [Content("So:"), WEATHER]),
    ("mistral", f'[TOOL_CALLS] [{JSON}, {{"name": "now", "arguments": {{}}}}]', [WEATHER, NOW]),
    ("mistral", f"Well.[TOOL_CALLS]get_weather[ARGS]{LONG}", [Content("Well."), DAYS]),
    ("mistral", f"[TOOL_CALLS]get_weather{LONG}[TOOL_CALLS]now[CALL_ID]a1[ARGS]{{}}", [DAYS, NOW]),
    (
        "deepseek_v3",
        "So:\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{LONG}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [Content("So:"), DAYS, NOW],
    ),
    (
        "deepseek_v3",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{LONG}"
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        [DAYS, NOW],
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Need\nweather.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.get_weather <|constrain|>json<|message|>{LONG}<|call|>",
        [Reasoning("Need\nweather."), DAYS],
    ),
    (
        HARMONY,
        f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{LONG}",
        [DAYS],
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<b",
        [Reasoning("Hm"), Content("Hi<b")],
    ),
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Bern<escape>,days:3,deep:{a:[1,true,"
        "null]}}<end_function_call><start_function_call>call:now{}<end_function_call>",
        [DAYS, NOW],
    ),
    (
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>Zürich ["1"]<|"|>}<tool_call|>',
        [WEATHER],
    ),
    ("granite", f"<|tool_call|>[{JSON}]", [WEATHER]),
    ("granite", f'<tool_call>[{JSON}, {{"name": "now", "arguments": {{}}}}]', [WEATHER, NOW]),
    (
        "pythonic",
        "[get_weather(city='Bern', days=3, deep={'a': [1, True, None]}), now()]",
        [DAYS, NOW],
    ),
    ("pythonic", "<|python_start|>[now()]<|python_end|>", [NOW]),
    ("generic", f"Yes:\n```json\n{JSON}\n```\nDone.", [Content("Yes:"), WEATHER, Content("Done.")]),
    ("generic", f"I look. {JSON}\n{JSON}", [Content("I look."), WEATHER, WEATHER]),
]

TEXTS = [
    ("hermes", "<tool_call> is how calls begin, {} and so on"),
    ("hermes", '<tool_call>{"name": "now"</tool_call>  \n'),
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    ("hermes", "<tool_call>{'name': 'now'}</tool_call>"),
    ("hermes", "Nothing, a < b <tool"),
    ("qwen3_coder", "<tool_call>\nsome words\n</tool_call>"),
    ("qwen3_coder", "<function=other>\n<parameter=a>1"),
    ("qwen3_coder", "<function=now>\n<parameter=a"),
    ("qwen3_coder", "<function=now> what? </function>"),
    ("llama3_json", '{"name": "Bob", "parameters": {}} is no tool'),
    ("llama3_json", '{"answer": 4}'),
    ("llama3_json", '{"name": "now"}'),
    ("hermes", '<tool_call>{"arguments": {"n": 1e400}, "name": "now"}</tool_call>'),
    ("pythonic", "[now(a=-1e400)]"),
    ("llama3_json", 'So: {"name": "now", "parameters": {'),
    ("mistral", "[TOOL_CALLS] none"),
    ("mistral", "[TOOL_CALLS][]"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>nothing"),
    ("functiongemma", "<start_function_call>call:now{a:<escape>b}<end_function_call>"),
    ("functiongemma", "<start_function_call>call:now{a:{" + "a:{" * 99 + "<end_function_call>"),
    ("granite", "<|tool_call|>[]"),
    ("pythonic", "[1] says that"),
    ("pythonic", "[now(1)]"),
    ("pythonic", "[" * 3000),
]


def told(
    name: str, text: str, cuts: Sequence[int] = (), reasoning: str = "none", prompt: str = ""
) -> list[Event]:
    """The joined events."""
    parser = OutputFormat.of("", name, reasoning).parser(TOOLS, prompt)
    events: list[Event] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        events += parser.push(text[start:end])
    return join_texts([*events, *parser.finish()])


def parsed(
    name: str, text: str, cuts: Sequence[int] = (), reasoning: str = "none", prompt: str = ""
) -> list[Event]:
    """The joined events, valid calls in pieces as whole ones."""
    whole: list[Event] = []
    for event in told(name, text, cuts, reasoning, prompt):
        match [*whole[-2:], event]:
            case [CallBegun(called), CallArguments(arguments), CallEnded(True)]:
                whole[-2:] = [Call(called, arguments)]
            case _:
                whole.append(event)
    return whole


@pytest.mark.parametrize(("name", "text", "expected"), CALLS)
def test_calls_of_each_format_are_read_however_they_are_cut(
    name: str, text: str, expected: list[Event]
) -> None:
    assert parsed(name, text) == expected
    assert parsed(name, text, range(1, len(text))) == expected
    for at in range(1, len(text)):
        assert parsed(name, text, [at]) == expected


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_what_is_not_a_call_stays_text_however_it_is_cut(name: str, text: str) -> None:
    assert parsed(name, text) == [Content(text)]
    assert parsed(name, text, range(1, len(text))) == [Content(text)]


STREAMED = [
    ("hermes", '<tool_call>\n{"name": "now", "arguments": '),
    ("hermes", '<tool_call>[{"name": "now", "arguments": '),
    ("llama3_json", '{"type": "function", "name": "now", "parameters": '),
    ("mistral", '[TOOL_CALLS] [ {"name": "now", "arguments": {}}, {"name":"now","arguments":'),
    ("mistral", "[TOOL_CALLS]now[ARGS]"),
    ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n"),
    ("granite", '<|tool_call|>[{"name": "now", "arguments": '),
    (HARMONY, "<|channel|>commentary to=functions.now<|message|>"),
]


@pytest.mark.parametrize(("name", "before"), STREAMED)
def test_arguments_of_known_tools_are_sent_as_they_come(name: str, before: str) -> None:
    parser = OutputFormat.of("", name, "none").parser(TOOLS, "")
    parser.push(before)
    assert parser.push("{") == []
    assert parser.push('\n"') == [CallBegun("now"), CallArguments('{\n"')]
    for piece in ('a"', ': "\\"}', "]", ' ", "b" :1 '):
        assert parser.push(piece) == [CallArguments(piece)]
    last, *ended = [*parser.push("}"), *parser.finish()]
    assert (last, ended) == (CallArguments("}"), [CallEnded(is_valid=True)])


def test_texts_in_tags_are_sent_as_they_come_and_other_values_at_their_ends() -> None:
    parser = OutputFormat.of("", "qwen3_coder", "none").parser(TOOLS, "")
    assert parser.push("<tool_call>\n<function=get_weather>\n<parameter=city") == []
    begun = [CallBegun("get_weather"), CallArguments('{"city": "')]
    assert parser.push(">") == begun
    pieces = [("\na", "a"), ("\n", None), ('"b', '\\n\\"b'), ("<", None), ("/b", "</b")]
    pieces += [("\n</", None), ("parameter>", '"'), ("\n<parameter=days>", ', "days": ')]
    pieces += [("1", None), ("7</parameter>", "17"), ("\n</func", None)]
    for piece, arguments in pieces:
        assert parser.push(piece) == ([CallArguments(arguments)] if arguments else [])
    assert parser.push("tion>") == [CallArguments("}"), CallEnded(is_valid=True)]


BROKEN: list[tuple[str, str, list[Event]]] = [
    ("hermes", '{"name": "now", "arguments": {"a": "\\', [CallArguments('{"a": "\\')]),
    (
        "hermes",
        '{"name": "now", "arguments": {"a" 1}}</tool_call> So.',
        [CallArguments('{"a" 1}'), CallEnded(is_valid=False), Content("So.")],
    ),
    (
        "hermes",
        '{"name": "now", "arguments": {"a": 1e400}}</tool_call>',
        [CallArguments('{"a": 1e400}'), CallEnded(is_valid=False)],
    ),
    (
        "hermes",
        '{"name": "now", "arguments": {}</tool_call> So.',
        [CallArguments("{}"), CallEnded(is_valid=True), Content("So.")],
    ),
    (
        "granite",
        '[{"name": "now", "arguments": {}, "id": {"a": 1}}, and',
        [CallArguments("{}"), CallEnded(is_valid=True), Content(", and")],
    ),
    ("granite", '[{"name": "now", "arguments": {}, ', [CallArguments("{}"), CallEnded(True)]),
    ("qwen3_coder", "<function=now><parameter=a>\n1\n</", [CallArguments('{"a": "1\\n</')]),
    (
        "qwen3_coder",
        "<function=now><parameter=a>1</parameter> So.",
        [CallArguments('{"a": "1"'), CallEnded(is_valid=False), Content("So.")],
    ),
]


@pytest.mark.parametrize(("name", "text", "expected"), BROKEN)
def test_what_breaks_within_arguments_is_sent_however_it_is_cut(
    name: str, text: str, expected: list[Event]
) -> None:
    text = f"<tool_call>{text}"
    for at in range(len(text)):
        assert told(name, text, [at]) == [CallBegun("now"), *expected]
    assert told(name, text, range(1, len(text))) == [CallBegun("now"), *expected]


@pytest.mark.parametrize(
    "text",
    [
        '{"arguments": {"a": 1}, "name": "now"}',
        '{"name": "now", "arguments": "{\\"a\\": 1}"}',
        '{"function": {"name": "now", "arguments": {"a":1}}}',
        '{"name": "other", "arguments": {"a": 1}}',
    ],
)
def test_other_calls_are_sent_at_their_end(text: str) -> None:
    (call,) = told("hermes", f"<tool_call>{text}", range(1, len(text)))
    assert isinstance(call, Call) and call.arguments == '{"a": 1}'


def test_halves_of_characters_stay_escaped() -> None:
    (call,) = told("hermes", r'<tool_call>{"arguments": {"a": "\ud800"}, "name": "now"}', [])
    assert isinstance(call, Call) and call.arguments == r'{"a": "\ud800"}'
    (text,) = told("hermes", r'<tool_call>{"arguments": {}, "name": "\ud800"}', [])
    assert isinstance(text, Content)


def test_every_tool_format_has_a_recorded_call() -> None:
    assert {name for name, _, _ in CALLS} == {row.name for row in TOOL_FORMATS}


def test_a_call_after_a_broken_one_is_read() -> None:
    text = f"<tool_call>{{'a'}}</tool_call>\n<tool_call>{JSON}</tool_call>"
    assert parsed("hermes", text) == [Content("<tool_call>{'a'}</tool_call>"), WEATHER]


@pytest.mark.parametrize(
    ("name", "text", "prompt", "expected"),
    [
        ("think", "<think>\nHm.\n</think>\n\nHi.", "", [Reasoning("Hm."), Content("Hi.")]),
        (
            "think",
            "Hm. </thin\n</think>\nHi. ",
            "<think>\n",
            [Reasoning("Hm. </thin"), Content("Hi. ")],
        ),
        ("think", " \nHi <think>.", "", [Content(" \nHi <think>.")]),
        ("think", "<think>\nHm. ", "", [Reasoning("Hm.")]),
        ("think", "<think>\n\n</think>\n\nHi", "", [Content("Hi")]),
        ("think", "<thi", "", [Content("<thi")]),
        (
            "granite",
            "Here is my thought process: A.\n\nHere is my response: B.",
            "",
            [Reasoning("A."), Content("B.")],
        ),
        ("gemma4", "<|channel>thought\nHm\n<channel|>Hi", "", [Reasoning("Hm"), Content("Hi")]),
        (
            HARMONY,
            "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
            "",
            [Reasoning("Hm"), Content("Hi")],
        ),
    ],
)
def test_reasoning_is_split_however_it_is_cut(
    name: str, text: str, prompt: str, expected: list[Event]
) -> None:
    assert parsed("none", text, (), name, prompt) == expected
    for at in range(1, len(text)):
        assert parsed("none", text, [at], name, prompt) == expected


def test_calls_after_reasoning_are_read_and_those_within_are_not() -> None:
    text = f"<think>A <tool_call>{JSON}</tool_call></think>\n<tool_call>{JSON}</tool_call>"
    expected = [Reasoning(f"A <tool_call>{JSON}</tool_call>"), WEATHER]
    for at in range(len(text)):
        assert parsed("hermes", text, [at], "think") == expected


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("hermes", '<tool_call>{"'),
        ("hermes", "<tool_call>{}"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"'),
        ("granite", '<tool_call>[{"name": "now", "arguments": {}, "'),
        ("mistral", '[TOOL_CALLS]now{"\\'),
        ("qwen3_coder", "<function=f>"),
        ("qwen3_coder", "<function=now><parameter=a>\n"),
        ("functiongemma", "<start_function_call>call:f{"),
        ("functiongemma", "<start_function_call>call:f{a:{<end_function_call>"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"),
        ("pythonic", "["),
        ("llama3_json", "{"),
        (HARMONY, "<|start|>"),
        (HARMONY, "<|channel|>commentary to=functions.f<|message|>{"),
    ],
)
def test_hostile_text_takes_time_in_proportion(name: str, piece: str) -> None:
    text = piece * (60_000 // len(piece))
    started = time.process_time()
    events = parsed(name, text, range(8, len(text), 8))
    assert time.process_time() - started < 5
    kinds = Content | Call | CallBegun | CallArguments | CallEnded
    assert all(isinstance(event, kinds) for event in events)


def test_arguments_are_json_objects() -> None:
    for _, _, events in CALLS:
        for event in events:
            if isinstance(event, Call):
                assert isinstance(json.loads(event.arguments), dict)
