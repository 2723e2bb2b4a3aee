"""Calls of known tools that an output writes as JSON, without the format's marks."""

import pytest

from snapexport.runtime.chat.parsers.parser import Content, Event
from snapexport.runtime.chat.parsers.table import HARMONY, TOOL_FORMATS, OutputFormat
from tests.runtime.chat.test_parsers import JSON, NOW, TOOLS, WEATHER, parsed

NOW_JSON = '{"name": "now", "arguments": {}}'
BARE: list[tuple[str, list[Event]]] = [
    (f" {JSON}", [WEATHER]),
    (f"{JSON}\n{NOW_JSON} So.", [WEATHER, NOW, Content("So.")]),
    (f"[{JSON}, {NOW_JSON}]", [WEATHER, NOW]),
    (f"```json\n{JSON}\n```\n```json\n[{NOW_JSON}]\n```\nSo.", [WEATHER, NOW, Content("So.")]),
    ('```\n{"arguments": {}, "name": "now"}\n``', [NOW]),
    ('{"parameters": "{}", "name": "now"}', [NOW]),
    ('{"type": "function", "function": {"name": "now", "arguments": {}}}', [NOW]),
    (f'{{"tool_calls": [{JSON}, {NOW_JSON}]}}', [WEATHER, NOW]),
    ('{\n  "tool_call": {"name": "now", "arguments": null}\n}', [NOW]),
    ('{"function": "now", "parameters": {}}', [NOW]),
]

BARE_TEXTS = [
    '{"name": "Bob", "arguments": {}} is no tool',
    f'{{"answer": {NOW_JSON}}}',
    '{"name": "now"}',
    '{"name": "now", "arguments": [1]}',
    '{"name": 3, "arguments": {}}',
    '{"named": "now"}, {"na',
    "```python\nprint({1: 2})\n```",
    '```json\n{"a": 1}\n```',
    "[1] says so, [ too, `code` and {x}",
    "{'name': 'now', 'arguments': {}}",
    '{"type": "function", "function": {"name": "other", "arguments": {}}}',
]


@pytest.mark.parametrize(("text", "expected"), BARE)
@pytest.mark.parametrize("name", [row.name for row in TOOL_FORMATS if row.name != HARMONY])
def test_bare_json_of_known_tools_is_a_call_in_every_format(
    name: str, text: str, expected: list[Event]
) -> None:
    assert parsed(name, text) == expected
    assert parsed(name, text, range(1, len(text))) == expected
    for at in range(1, len(text), 3):
        assert parsed(name, text, [at]) == expected


@pytest.mark.parametrize("text", BARE_TEXTS)
@pytest.mark.parametrize("name", [row.name for row in TOOL_FORMATS])
def test_bare_json_of_anything_else_stays_text(name: str, text: str) -> None:
    assert parsed(name, text) == [Content(text)]
    assert parsed(name, text, range(1, len(text))) == [Content(text)]


@pytest.mark.parametrize("name", ["hermes", "generic", "pythonic"])
def test_a_json_answer_is_passed_on_as_it_comes(name: str) -> None:
    parser = OutputFormat.of("", name, "none").parser(TOOLS, "")
    assert list(parser.push('{"answer": "a')) == [Content('{"answer": "a')]
    assert list(parser.push("bc")) == [Content("bc")]
