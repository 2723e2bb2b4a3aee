"""Reasoning before a form over HTTP, by a random model: the form begins where reasoning ends."""

import json
import re
from functools import partial
from typing import Any

import openai
import pytest

from snapexport.runtime.chat import chat_prompts
from snapexport.runtime.chat.parsers import json_calls
from snapexport.runtime.chat.parsers.reasoning import ThinkParser, ThinkSyntax
from snapexport.runtime.chat.parsers.table import OutputFormat, ReasoningFormat, ToolFormat
from snapexport.runtime.chat.parsers.tool_parser import ToolParser
from tests.serving.openai.conftest import Served
from tests.serving.openai.scripted import TOOL, use_format, use_template

SHORT = ThinkSyntax("Y", "Z")
"""Marks that a model of bytes writes by itself."""
CALLS = ToolFormat("bare", (), (), partial(ToolParser, json_calls.BARE))
FORMAT = OutputFormat(CALLS, ReasoningFormat("short", (), (), partial(ThinkParser, SHORT), SHORT))
READS = "{% if tools or tool_calls or enable_thinking %}{% endif %}"
OPTIONS: Any = {
    "model": "model",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 300,
    "seed": 5,
}
FORM: Any = {"guided_regex": "[ab]{6}"}
FORCED: Any = {"tools": [TOOL], "tool_choice": "required"}
Read = tuple[str, str, str, str]


def use(served: Served, monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    use_template(monkeypatch, served.model, READS + prompt)
    use_format(monkeypatch, served.model, FORMAT)
    monkeypatch.setattr(chat_prompts, "encode", lambda *_: [1, 2, 3])


def likes(served: Served, **bias: float) -> dict[str, Any]:
    assert served.model.tokenizer
    encode = served.model.tokenizer.encode
    return {"logit_bias": {str(encode(letter).ids[0]): value for letter, value in bias.items()}}


def answer(served: Served, stream: bool, form: Any = FORM, **more: Any) -> Read:
    """Reasoning, content, arguments of calls, and how the answer ended."""
    create: Any = served.client().chat.completions.create
    done = create(**OPTIONS | more, extra_body=form, stream=stream)
    choices = [chunk.choices[0] for chunk in done] if stream else [done.choices[0]]
    messages = [one.delta if stream else one.message for one in choices]
    calls = [call for message in messages for call in message.tool_calls or []]
    return (
        "".join(getattr(message, "reasoning_content", None) or "" for message in messages),
        "".join(message.content or "" for message in messages),
        "".join(call.function.arguments for call in calls),
        choices[-1].finish_reason,
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("opens", [True, False], ids=["by the prompt", "by the model"])
def test_form_begins_after_reasoning(
    served: Served, monkeypatch: pytest.MonkeyPatch, opens: bool, stream: bool
) -> None:
    use(served, monkeypatch, "[user]Y\n" if opens else "[user]")
    more = likes(served, Z=5.0) if opens else likes(served, Y=10.0, Z=5.0)
    reasoning, content, _, ended = answer(served, stream, **more)
    assert reasoning and "Z" not in reasoning
    assert re.fullmatch("[ab]{6}", content) and ended == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_follows_reasoning(
    served: Served, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    use(served, monkeypatch, "[user]Y\n")
    reasoning, content, arguments, ended = answer(served, stream, FORCED, **likes(served, Z=5.0))
    assert reasoning and not content
    assert json.loads(arguments) == {} and ended == "tool_calls"


def test_reasoning_that_is_never_closed_ends_at_the_limit(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(served, monkeypatch, "[user]Y\n")
    reasoning, content, _, ended = answer(served, False, **likes(served, Z=-100.0))
    assert reasoning and not content and ended == "length"


@pytest.mark.parametrize(
    ("prompt", "more"),
    [
        ("[user]Y\n\nZ\n\n", {}),
        ("[user]", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("[user]Hello", {"continue_final_message": True, "add_generation_prompt": False}),
    ],
    ids=["an empty block", "enable_thinking", "a continued message"],
)
def test_form_begins_at_once_where_thinking_is_off(
    served: Served, monkeypatch: pytest.MonkeyPatch, prompt: str, more: Any
) -> None:
    use(served, monkeypatch, prompt)
    loves = likes(served, Y=100.0)
    reasoning, content, _, ended = answer(served, False, FORM | more, **loves)
    assert not reasoning and re.fullmatch("[ab]{6}", content) and ended == "stop"


@pytest.mark.slow
def test_a_form_that_cannot_be_kept_is_refused_after_reasoning_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(served, monkeypatch, "[user]Y\n")
    with pytest.raises(openai.BadRequestError, match="processor time"):
        answer(served, False, {"guided_json": {"type": "integer", "multipleOf": 99999999}})
