"""Conversations: the prompt that the template makes, and the token that ends an answer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.chat.chat_prompts import ChatPrompts
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.chat.template_habits import end_token
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits
from tests.runtime.tokenizers_for_tests import byte_level

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED = [{"role": "user", "content": "é?"}]


def tokenizer() -> Tokenizer:
    made = byte_level()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.add_tokens([AddedToken("<|im"), AddedToken("<end>", special=False)])
    return made


@pytest.mark.parametrize(
    ("source", "token"),
    [
        (CHATML, "<|im_end|>"),
        (CHATML.replace("<|im_end|>", " </s>"), "</s>"),
        (CHATML.replace("m.content", "m.content | trim"), "<|im_end|>"),
        (CHATML.replace("<|im_end|>", "<end>"), "<end>"),
        (CHATML.replace("<|im_end|>", "<|im"), "<|im"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", None),
        ("{% for m in messages %}{{ m.content | upper }}<|im_end|>{% endfor %}", None),
        ("{{ messages[0].content }}", None),
        ("{{ raise_exception('never') }}", None),
    ],
)
def test_end_token_is_what_the_template_writes_after_an_answer(
    source: str, token: str | None
) -> None:
    known = tokenizer()
    expected = None if token is None else known.token_to_id(token)
    assert end_token(ChatTemplate(source, {}), known) == expected


@pytest.mark.parametrize(
    ("eos", "ignore_eos", "added"),
    [(256, False, ["<|im_end|>"]), (258, False, []), (256, True, [])],
    ids=["another token", "the same token", "ignored"],
)
def test_chat_ends_at_the_templates_token_where_the_build_has_another(
    eos: int, ignore_eos: bool, added: list[str]
) -> None:
    known = tokenizer()
    chat = ChatPrompts(known, ChatTemplate(CHATML, {}), make_limits(eos_token_id=frozenset({eos})))
    params = SamplingParams(stop_token_ids=(7,), ignore_eos=ignore_eos)
    ends = (7, *map(known.token_to_id, added))
    assert chat.ending(params) == replace(params, stop_token_ids=ends)


def test_a_stop_token_ends_a_request_and_has_no_text() -> None:
    llm = LLM.from_executor(FakeExecutor(make_limits()), byte_level())
    (whole,) = llm.generate("Hello", SamplingParams(max_tokens=9))
    stop = whole.token_ids[4]
    for ignore_eos in (False, True):
        params = SamplingParams(max_tokens=9, stop_token_ids=[stop], ignore_eos=ignore_eos)
        (ended,) = llm.generate("Hello", params)
        assert ended.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
        assert ended.finish_reason == "stop"
        assert whole.text.startswith(ended.text)


@pytest.mark.parametrize("tokens", [[-1], ["a"], [True], 5, list(range(65))])
def test_wrong_stop_tokens_are_refused(tokens: Any) -> None:
    with pytest.raises(UserError, match="stop_token_ids"):
        SamplingParams(stop_token_ids=tokens)


@pytest.fixture
def llm(tiny_build: Build, tmp_path: Path) -> LLM:
    """An LLM on the fake executor, as if it were of a build with a template."""
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    made = LLM.from_executor(
        FakeExecutor(make_limits(longest_prompt=90, vocab_size=300)), tokenizer()
    )
    made._directory = tmp_path
    return made


def test_chat_answers_the_prompt_that_the_template_makes(llm: LLM) -> None:
    (answer,) = llm.chat(ASKED, SamplingParams(max_tokens=5))
    text = "<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\n"
    assert answer.prompt_token_ids == tuple(tokenizer().encode(text).ids)
    (same,) = llm.generate(text, SamplingParams(max_tokens=5))
    assert answer == same


def test_chat_answers_each_of_a_list_of_conversations(llm: LLM) -> None:
    other = [{"role": "system", "content": "Brief."}, *ASKED]
    params = [SamplingParams(max_tokens=3), SamplingParams(max_tokens=5)]
    both = llm.chat([ASKED, other], params)
    assert both == [llm.chat(ASKED, params[0])[0], llm.chat(other, params[1])[0]]
    assert llm.chat([]) == []


@pytest.mark.parametrize(
    ("messages", "options", "says"),
    [
        ("hello", {}, "'h' is not a conversation"),
        ([[]], {}, "is not a conversation"),
        ([{"role": "user"}], {}, "is not a message"),
        ([{"role": "user", "content": ["a"]}], {}, "is not a message"),
        ([{"role": "user", "content": "a" * 99}], {}, "tokens, the build takes 90"),
        ([{"role": "user", "content": "a" * (1 << 17)}], {}, "131072 bytes, 65536 are read"),
        ([{"role": "user", "content": "a" * 65500}], {}, "bytes, 65536 are read"),
        (ASKED, {"messages": []}, "'messages' cannot be an option"),
    ],
)
def test_what_is_not_a_conversation_is_refused(
    llm: LLM, messages: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        llm.chat(messages, chat_template_kwargs=options)


def test_chat_shows_tools_to_a_template_that_reads_them(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ tools[0].function.name }}" + CHATML)
    made = LLM.from_executor(
        FakeExecutor(make_limits(longest_prompt=90, vocab_size=300)), tokenizer()
    )
    made._directory = tmp_path
    tools = [{"type": "function", "function": {"name": "now"}}]
    (answer,) = made.chat(ASKED, SamplingParams(max_tokens=2), tools=tools)
    text = "now<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\n"
    assert answer.prompt_token_ids == tuple(tokenizer().encode(text).ids)


def test_llm_without_a_template_refuses_chats(tiny_build: Build) -> None:
    with pytest.raises(UserError, match="has no chat template"):
        LLM(tiny_build.directory).chat(ASKED)
    with pytest.raises(UserError, match="on an executor has no chat template"):
        LLM.from_executor(FakeExecutor(make_limits()), byte_level()).chat(ASKED)


def test_prefill_is_reported_chunk_by_chunk_before_the_first_token() -> None:
    llm = LLM.from_executor(FakeExecutor(make_limits(prefill_chunk=4)), byte_level())
    done: list[int] = []
    deltas = llm.stream([1] * 15, SamplingParams(max_tokens=2), done.append)
    next(deltas)
    assert done == [4, 8, 12]
    list(deltas)
    assert done == [4, 8, 12]


def test_an_exception_of_the_prefill_callback_cancels_the_request() -> None:
    def leave(_: int) -> None:
        raise InterruptedError

    llm = LLM.from_executor(FakeExecutor(make_limits()), byte_level())
    with pytest.raises(InterruptedError):
        list(llm.stream([1] * 15, on_prefill=leave))
    assert not llm.busy and llm.slots_used == 0
