"""Calls and reasoning of a history reach each kind of template in the form that it takes."""

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


def test_a_template_that_does_not_show_tools_or_calls_refuses_them() -> None:
    asked = {"role": "user", "content": "a"}
    with pytest.raises(UserError, match="does not read tools"):
        text("{{ messages[0].content }}", asked, tools=[{"type": "function"}])
    with pytest.raises(UserError, match="does not read tool_calls"):
        text("{{ messages[0].content }}", asked, called("{}"))
