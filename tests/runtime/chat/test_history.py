"""Calls and reasoning of a history reach each kind of template in the form that it takes."""

import json
from typing import Any

import pytest

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_prompts import Chat, ChatPrompts
from snapexport.runtime.chat.chat_template import ChatTemplate

CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}"
END = "{% endfor %}{% endfor %}"
PAIRS = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
AS_OBJECT = CALLS + PAIRS + END
AS_JSON = CALLS + "{{ c.function.arguments | tojson }}" + END
JOINED = CALLS + "{{ '<' + c.function.arguments + '>' }}" + END


def text(template: str, *turns: dict[str, Any], **options: Any) -> str:
    return ChatPrompts(None, ChatTemplate(template, {})).text(Chat(turns, **options))


def called(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("template", "expected"),
    [(AS_OBJECT, "a=é"), (AS_JSON, '{"a": "é"}'), (JOINED, '<{"a": "é"}>')],
)
@pytest.mark.parametrize("arguments", ['{"a": "é"}', {"a": "é"}])
def test_arguments_have_the_form_that_the_template_takes(
    template: str, expected: str, arguments: Any
) -> None:
    assert text(template, called(arguments)) == expected


def test_arguments_that_are_not_an_object_stay_a_text() -> None:
    assert text(AS_JSON, called("{'a'")) == "\"{'a'\""
    assert "Infinity" not in text(AS_JSON, called('{"a": 1e999}'))


NULL = "{% if m.content is none %}" + PAIRS + "{% endif %}"
TEXT = "{% if '>' in m.content %}{% endif %}" + PAIRS


@pytest.mark.parametrize(
    "shown",
    [
        NULL,  # DeepSeek V3
        TEXT,  # Qwen3, QwQ, gpt-oss
        PAIRS + "{{ m.content }}",  # Command R+
        PAIRS + "{{ m.content[0] or '' }}",  # Devstral
    ],
)
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=repr)
def test_a_call_without_content_is_shown_by_every_template(shown: str, content: Any) -> None:
    assert text(CALLS + shown + END, {**called({"a": "é"}), **content}) == "a=é"


def test_content_beside_a_call_is_kept() -> None:
    turn = {**called("{}"), "content": "Now."}
    assert text("{# tool_calls #}{{ messages[0].content }}", turn) == "Now."


@pytest.mark.parametrize("given", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("read", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_the_templates_name(given: str, read: str) -> None:
    turn = {"role": "assistant", "content": "", given: "Hm."}
    assert text(f"{{{{ messages[0].{read} }}}}", turn) == "Hm."
    assert text("{{ messages[0].content }}", turn) == ""


SHOWN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role != ('user', 'assistant')[loop.index0 % 2] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}|{% endfor %}"
)
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
USER = {"role": "user", "content": "a?"}
RESULTS = [{"role": "tool", "tool_call_id": i, "content": f"r{i}"} for i in "12"]


def calls_of(*names: str) -> dict[str, Any]:
    calls = [{"id": f"{i}", "function": {"name": n}} for i, n in enumerate(names, 1)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_tools_are_described_where_the_template_shows_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the system message, in a new one, or before the user's text; the log says so once."""
    described = json.dumps(TOOL["function"])
    system = {"role": "system", "content": "Be brief."}
    for given in ([USER], [system, USER], [{**system, "role": "developer"}, USER]):
        shown = text(SHOWN, *given, tools=[TOOL])
        assert shown.startswith("[system]" + "Be brief." * (len(given) > 1))
        assert described in shown and shown.endswith("[user]a?")
    shown = text(STRICT, USER, calls_of("f"), RESULTS[0], tools=[TOOL])
    assert described in shown.partition("|")[0] and "a?|{" in shown
    with pytest.raises(UserError, match="is not a tool"):
        text(SHOWN, USER, tools=[{"type": "function"}])
    caplog.clear()
    prompts = ChatPrompts(None, ChatTemplate(STRICT, {}))
    for _ in range(2):
        prompts.text(Chat([USER], tools=[TOOL]))
    assert [record.args for record in caplog.records] == [("user",)]


@pytest.mark.parametrize("template", [SHOWN, STRICT])
def test_calls_and_results_are_texts_where_the_template_shows_none(template: str) -> None:
    shown = text(template, USER, calls_of("f", "g"), *RESULTS, {**USER, "content": "b?"})
    results = "Result of f: r1\nResult of g: r2\nb?"
    calls = '{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}'
    roles = ("[user]", "[assistant]", "[user]") if template is SHOWN else ("",) * 3
    end = "" if template is SHOWN else "|"
    assert shown == "".join(
        f"{role}{each}{end}" for role, each in zip(roles, ("a?", calls, results), strict=True)
    )
    kept = {**called('{"a": 1}'), "content": "Now."}
    assert 'Now.\n{"name": "f", "arguments": {"a": 1}}' in text(template, USER, kept)
