"""A turn goes on from the text before the generation prompt, where no more of it is in the next."""

from dataclasses import replace
from typing import Any

import pytest

from snapexport import LLM, SamplingParams
from snapexport.errors import UserError
from snapexport.runtime.chat.chat_prompts import Chat, ChatPrompts
from snapexport.runtime.chat.chat_template import ChatTemplate
from snapexport.runtime.requests.request import Request
from tests.oracle import cases, turns
from tests.oracle.cases import Case
from tests.oracle.checkpoints import VOCABULARY
from tests.runtime.tokenizers_for_tests import byte_level

CASE = Case(extend=True, batch=2)
GREEDY = SamplingParams(max_tokens=13, ignore_eos=True)

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ANSWER = "{% if add_generation_prompt %}[assistant]{% endif %}"
THINKS = (
    "{% if add_generation_prompt %}[assistant]"
    "{% if thinks is not defined or not thinks %}<think></think>{% endif %}{% endif %}"
)
SAME_TURN = "{% if add_generation_prompt and messages[-1].role != 'tool' %}[assistant]{% endif %}"
RESULTS = (  # an answer goes on behind a call's result, but the prompt says [assistant] once more
    "{% for m in messages %}"
    "{% if m.role != 'assistant' or messages[loop.index0 - 1].role != 'tool' %}[{{ m.role }}]"
    "{% endif %}{{ m.content }}{% endfor %}"
)
ASKED = {"role": "user", "content": "Hello"}
RESULT = {"role": "tool", "content": "sunny"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}


@pytest.mark.parametrize(
    ("source", "options", "parked"),
    [
        (TURNS + ANSWER, {}, None),
        (TURNS + THINKS, {}, "[user]Hello[assistant]"),
        (TURNS + THINKS, {"thinks": True}, None),
        (TURNS + "[assistant]<think></think>", {}, "[user]Hello[assistant]"),
        ("{{ messages | length }}" + TURNS + THINKS, {}, None),  # no turn begins the next
        ("{{ raise_exception('no') }}", {}, None),
    ],
)
def test_row_is_parked_where_the_next_turn_still_begins_with_it(
    source: str, options: dict[str, bool], parked: str | None
) -> None:
    assert parked_text(source, [ASKED], options) == parked


@pytest.mark.parametrize(
    ("source", "parked"),
    [
        (RESULTS + ANSWER, "[user]Hello[assistant][tool]sunny"),
        (RESULTS + SAME_TURN, None),
        (TURNS + ANSWER, None),
        (TURNS + THINKS, "[user]Hello[assistant][tool]sunny[assistant]"),
    ],
)
def test_row_after_the_result_of_a_call_is_parked_where_answers_follow(
    source: str, parked: str | None
) -> None:
    source = "{# tools tool_calls #}{% set _ = tools %}" + source
    assert parked_text(source, [ASKED, CALL, RESULT], {}) == parked


def test_row_is_parked_before_what_a_call_takes_the_place_of() -> None:
    """The line break behind [assistant] belongs to the answer, of which a call is one."""
    calls = "{% if m.tool_calls %}call{% elif m.role == 'assistant' %}\n{% endif %}"
    source = TURNS.replace("{{ m.content }}", calls + "{{ m.content or '' }}") + ANSWER
    assert parked_text(source + "{{ '\n' }}", [ASKED], {}) == "[user]Hello[assistant]"


def parked_text(source: str, messages: list[Any], options: dict[str, bool]) -> str | None:
    """What is parked of a prompt, if it is not the whole."""
    chats = ChatPrompts(byte_level(), ChatTemplate(source, {}))
    chat = Chat(messages, options)
    try:
        ids = chats.prompt(chat).token_ids
    except UserError:
        ids = [1, 2, 3]
    length = chats.park_at(chat, ids)
    return byte_level().decode(list(ids[:length])) if length else None


def model(rows: int = 2) -> LLM:
    return LLM(cases.built(CASE).directory, threads=1, parked_rows=rows)


@pytest.mark.parametrize("lengths", [(90, 9, 12), (40, 3, 40), (32, 1, 5)])
def test_prompt_in_two_parts_is_a_turn_and_its_rest(lengths: tuple[int, ...]) -> None:
    """The tail of the first prompt is not part of the second."""
    where = cases.checkpoint(CASE.checkpoint), lengths[:2], CASE.geometry
    (first, tail), want = turns.first_clear(*where, 12, VOCABULARY, ())
    llm, prompt = model(), first + tail
    deltas = list(llm.stream(_parking(llm, prompt, len(first))))
    assert [token for delta in deltas for token in delta.token_ids] == want.tokens
    assert deltas[0].cached_tokens == 0
    again = next(llm.stream(_parking(llm, prompt, len(first))))
    assert again.cached_tokens == len(first) and again.token_ids[0] == want.tokens[0]
    following = first + list(cases.prompt(lengths[2], 7))
    expected = next(llm.stream(following, GREEDY))
    assert expected.cached_tokens == len(first)


def _parking(llm: LLM, prompt: list[int], at: int) -> Request:
    return replace(llm.read(prompt, GREEDY), park_at=at)


def test_short_prompt_is_not_cut() -> None:
    """Its row may save no chunk, and the cut costs a block."""
    prompt = list(cases.prompt(30))
    (plain,) = model().generate([prompt], GREEDY)
    llm = model()
    assert _answer(llm, prompt) == list(plain.token_ids)
    assert next(llm.stream([*prompt, 5, 6, 7], GREEDY)).cached_tokens == 30


def test_neighbours_change_nothing() -> None:
    one, other = list(cases.prompt(70)), list(cases.prompt(33, 5))
    alone = [list(_answer(model(), prompt)) for prompt in (one, other)]
    llm = model()
    ids = [llm.submit(_parking(llm, prompt, len(prompt) - 5)) for prompt in (one, other)]
    tokens: dict[int, list[int]] = {request_id: [] for request_id in ids}
    while llm.busy:
        for delta in llm.step():
            tokens[delta.request_id] += delta.token_ids
    assert list(tokens.values()) == alone


def _answer(llm: LLM, prompt: list[int]) -> list[int]:
    deltas = llm.stream(_parking(llm, prompt, len(prompt) - 5))
    return [token for delta in deltas for token in delta.token_ids]


def test_nothing_is_cut_where_no_rows_are_parked() -> None:
    llm, prompt = LLM(cases.built(CASE).directory, threads=1), list(cases.prompt(70))
    (plain,) = llm.generate([prompt], GREEDY)
    assert _answer(llm, prompt) == list(plain.token_ids)
