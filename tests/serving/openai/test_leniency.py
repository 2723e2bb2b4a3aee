"""Fields that clients send unasked and that can't change an answer pass."""

from typing import Any

import openai
import pytest

from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.chat.chat_template import ChatTemplate
from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.conftest import Served

ASKED = {"role": "user", "content": "Hello"}
PLAIN = "</s>[user]Hello[assistant]"


def prompt_of(served: Served, client: openai.OpenAI, **body: Any) -> str:
    """The prompt that a chat becomes."""
    served.llm.requests.clear()
    given = {"model": "model", "messages": [ASKED], "max_tokens": 2} | body
    client.chat.completions.create(**given)
    (request,) = served.llm.requests
    return str(byte_level().decode(list(request.prompt_token_ids), skip_special_tokens=False))


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "verbosity": "low"},
        {"seed": -1, "max_tokens": 2.0, "n": 1.0},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        {"stop_token_ids": [], "logit_bias": {}, "tools": []},
        {"stream_options": {"include_usage": None}, "response_format": {"type": "text", "x": None}},
        {"guided_decoding_backend": "guidance", "return_token_ids": False, "echo": False},
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
        {"messages": [ASKED | {"name": "bob", "annotations": [], "id": "m1"}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
                    ],
                }
            ]
        },
    ],
    ids=lambda body: next(iter(body)),
)
def test_what_cannot_change_the_answer_passes(
    served: Served, client: openai.OpenAI, body: dict[str, Any]
) -> None:
    assert prompt_of(served, client, extra_body=body) == PLAIN


def test_history_of_a_reasoning_model_passes(served: Served, client: openai.OpenAI) -> None:
    answer = {"role": "assistant", "content": "ok", "reasoning_content": "hm", "refusal": None}
    prompt = prompt_of(served, client, messages=[ASKED, answer, ASKED])
    assert prompt == "</s>[user]Hello[assistant]ok[user]Hello[assistant]"


def test_template_gets_what_else_a_message_and_a_request_have(
    served: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "{% for m in messages %}{{ m.name }}:{{ m.content }}{% endfor %}{{ reasoning_effort }}"
    chats = ChatPrompts(byte_level(), ChatTemplate(source, {}))
    monkeypatch.setattr(served.model, "chat", chats)
    prompt = prompt_of(served, client, messages=[ASKED | {"name": "bob"}], reasoning_effort="low")
    assert prompt == "bob:Hellolow"


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ({"add_generation_prompt": False}, "[assistant]The answer."),
        ({"add_generation_prompt": False, "continue_final_message": True}, "[assistant]The answer"),
        ({}, "[assistant]The answer.[assistant]"),
    ],
)
def test_prompt_may_end_with_its_last_message_or_within_it(
    served: Served,
    client: openai.OpenAI,
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, Any],
    ends: str,
) -> None:
    """As in vLLM."""
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}.{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    chats = ChatPrompts(byte_level(), ChatTemplate(source, {}))
    monkeypatch.setattr(served.model, "chat", chats)
    messages = [ASKED, {"role": "assistant", "content": "The answer"}]
    prompt = prompt_of(served, client, messages=messages, extra_body=body)
    assert prompt == "[user]Hello." + ends


def test_each_chunk_has_the_usage_so_far_if_asked_for(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.completions.create(
            model="model",
            prompt="abc",
            max_tokens=5,
            stream=True,
            stream_options=options,
            temperature=0,
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert len(counts) == len(chunks) and counts == sorted(counts) and counts[-1] == 5
    assert {chunk.usage.prompt_tokens for chunk in chunks if chunk.usage} == {3}
