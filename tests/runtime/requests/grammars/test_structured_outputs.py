"""Answers have the form that was asked for, whatever the model would write."""

import json
import re
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.runtime import confined
from snapexport.runtime.confined import Pool
from snapexport.runtime.requests import grammars
from snapexport.runtime.requests.grammars import library
from snapexport.runtime.requests.grammars.grammar import GrammarError, Grammars
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import Completion, SamplingParams
from snapexport.runtime.requests.speculation import Payoff
from snapexport.runtime.requests.structured_outputs import MOST_CHARACTERS, StructuredOutputs
from snapexport.vault import CHECKPOINT
from tests.runtime.requests.fake_executor import FakeExecutor, drain, make_limits
from tests.runtime.requests.grammars.schemas import SCHEMAS, is_valid
from tests.runtime.tokenizers_for_tests import byte_fallback, byte_level, words

END = 256


def make(tokens_per_step: int = 1, tokenizer: Tokenizer | None = None, **limits: Any) -> LLM:
    """Every token is about as likely as any other."""
    tokenizer = tokenizer or byte_level()
    given: dict[str, Any] = {"vocab_size": tokenizer.get_vocab_size(), "positions": 4000}
    given |= {"step_tokens": tokens_per_step, "eos_token_id": frozenset([END])} | limits
    return LLM.from_executor(
        FakeExecutor(make_limits(**given), drafts=tokens_per_step > 1), tokenizer
    )


MODEL = make(batch=4)


def answers(llm: LLM, *outputs: StructuredOutputs | None, **params: Any) -> list[Completion]:
    each = [
        SamplingParams(
            **{"temperature": 1.0, "seed": seed, "max_tokens": 2000, "structured_outputs": one}
            | params
        )
        for seed, one in enumerate(outputs)
    ]
    return llm.generate([[seed + 1] for seed in range(len(outputs))], each)


@settings(max_examples=60, deadline=None)
@given(SCHEMAS)
def test_sampled_answers_are_valid_by_their_schema(schema: dict[str, Any]) -> None:
    outputs = StructuredOutputs(json=schema)
    for one in answers(MODEL, outputs, outputs):
        assert one.finish_reason == "stop", one.text
        assert is_valid(json.loads(one.text), schema, schema), (one.text, schema)


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        (StructuredOutputs(regex="[0-9]{3}-(é|🙂){2}"), "[0-9]{3}-(é|🙂){2}"),
        (StructuredOutputs(choice=["yes", "no", 'né "🙂"\\n']), 'yes|no|né "🙂"\\\\n'),
        (StructuredOutputs(json_object=True), r"\{[\s\S]*\}"),
        (StructuredOutputs(grammar='start: "a" N\nN: /[0-9]{2}/'), "a[0-9]{2}"),
        (StructuredOutputs(grammar='?start: "a" N\nN: /[0-9]{2}/'), "a[0-9]{2}"),
        (StructuredOutputs(grammar='root ::= "b" [0-9] [0-9]'), "b[0-9]{2}"),
    ],
)
def test_each_kind_of_form_is_kept(outputs: StructuredOutputs, pattern: str) -> None:
    for one in answers(MODEL, outputs, outputs, outputs, max_tokens=400):
        if one.finish_reason == "stop":
            assert re.fullmatch(pattern, one.text)
        else:
            assert outputs.json_object and one.finish_reason == "length"


@pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback(), None], ids=str)
def test_bytes_of_every_kind_of_tokenizer_are_followed(tokenizer: Tokenizer | None) -> None:
    tokenizer = tokenizer or Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    llm = make(tokenizer=tokenizer, eos_token_id=frozenset())
    choice = ["a é 漢", "b🙂\n", "  ab"]
    texts = {one.text for one in answers(llm, *[StructuredOutputs(choice=choice)] * 40)}
    assert texts == set(choice)


def test_logits_of_no_token_are_never_taken() -> None:
    """A graph may have more logits than there are tokens, or fewer."""
    for size in (300, 200):
        llm = make(vocab_size=size, eos_token_id=frozenset())
        (one,) = answers(llm, StructuredOutputs(regex="(a|é){5}"))
        assert re.fullmatch("(a|é){5}", one.text) and max(one.token_ids) < min(size, END)


def test_end_tokens_are_taken_where_the_text_is_complete_and_nowhere_else() -> None:
    digits = StructuredOutputs(regex="[0-9]{5,}")
    done = answers(make(), *[digits] * 20)
    assert all(one.finish_reason == "stop" and one.token_ids[-1] == END for one in done)
    assert min(len(one.text) for one in done) >= 5 and len({len(one.text) for one in done}) > 2
    (one,) = answers(make(), digits, stop_token_ids=(ord("7") - 33,), max_tokens=60)
    assert re.fullmatch("[0-9]{5,}", one.text)


def test_a_complete_form_ends_without_an_end_token() -> None:
    for more in ({"ignore_eos": True}, {"min_tokens": 60}, {"logprobs": 3}):
        (one,) = answers(make(), StructuredOutputs(regex="x{4}"), **more)
        assert (one.text, one.finish_reason, len(one.token_ids)) == ("xxxx", "stop", 4)


def test_limits_and_stops_end_a_form_too() -> None:
    form = StructuredOutputs(regex="(abc)+")
    (one,) = answers(make(), form, max_tokens=4)
    assert (one.text, one.finish_reason) == ("abca", "length")
    (one,) = answers(make(), form, stop=["cab"], min_tokens=9, ignore_eos=True)
    assert (one.text, one.finish_reason) == ("abcabcab", "stop")
    (one,) = answers(make(), form, min_tokens=30, max_tokens=31)
    assert len(one.token_ids) >= 30, "the end is put off where the form can go on"


def test_neighbours_keep_their_tokens_and_logprobs_are_the_models_own() -> None:
    form = StructuredOutputs(regex="[a-z]{30}")
    alone = answers(make(), None, None, None, max_tokens=30, logprobs=2)
    beside = answers(make(), None, form, None, max_tokens=30, logprobs=2)
    assert [alone[0], alone[2]] == [beside[0], beside[2]]
    assert re.fullmatch("[a-z]{30}", beside[1].text)
    assert beside[1].logprobs[0].top == alone[1].logprobs[0].top


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_leave_the_output_as_it_is(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Payoff, "pays", lambda *_: True)
    forms = [
        StructuredOutputs(regex="(ab|ba)*c"),
        None,
        StructuredOutputs(json={"type": "array", "items": {"type": "boolean"}, "maxItems": 9}),
        StructuredOutputs(regex="(xy){20}"),
    ]
    single = answers(make(1), *forms, temperature=temperature, max_tokens=80)
    several = answers(make(4), *forms, temperature=temperature, max_tokens=80)
    assert [(one.token_ids, one.finish_reason) for one in several] == [
        (one.token_ids, one.finish_reason) for one in single
    ]
    assert several[3].accepted > 10


WITHIN = "start: think @form\nthink[lazy]: /(?s:.*)e/"


def test_a_form_begins_within_text_with_drafts_as_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And neighbours keep their tokens."""
    monkeypatch.setattr(Payoff, "pays", lambda *_: True)
    form = StructuredOutputs(regex="(ab|ba){9}", within=WITHIN)
    (alone,) = answers(make(), None, max_tokens=100)
    single = answers(make(), None, form, form, max_tokens=500)
    several = answers(make(4), None, form, form, max_tokens=500)
    assert [one.token_ids for one in single] == [one.token_ids for one in several]
    assert single[0].token_ids[:100] == alone.token_ids
    for one in single[1:]:
        head, _, tail = one.text.partition("e")
        assert head and re.fullmatch("(ab|ba){9}", tail) and one.finish_reason == "stop"


def test_a_form_within_text_is_tried_as_such() -> None:
    with pytest.raises(UserError, match="compiled"):
        answers(MODEL, StructuredOutputs(regex="a", within="start: @forms"))


def test_distribution_is_the_models_own_among_what_is_allowed() -> None:
    """Of two allowed tokens each comes as often as its probability says."""
    llm, count = make(), 400
    form = StructuredOutputs(regex="a|b")
    params = [
        SamplingParams(temperature=0.2, seed=n, structured_outputs=form) for n in range(count)
    ]
    done = llm.generate([[1]] * count, params)
    ids = [byte_level().encode(letter).ids[0] for letter in "ab"]
    assert isinstance(llm.executor, FakeExecutor)
    logits = llm.executor._next([1], broken=False)[ids].astype(float) / 0.2
    expected = np.exp(logits[0]) / np.exp(logits).sum()
    assert abs(sum(one.text == "a" for one in done) / count - expected) < 0.1


PATTERNS = [{"type": "string", "pattern": f".*a.{{{n}}}b"} for n in range(40)]
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(300):
    DEEP = {"type": "array", "items": DEEP}
REFERENCES = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(200)}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(
            {"json": {"allOf": PATTERNS}}, "processor time|memory", marks=pytest.mark.slow
        ),
        ({"json": {"type": "integer", "multipleOf": 99999999}}, "processor time|memory"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "minLength"),
        ({"json": {"not": {}}}, "Unimplemented keys"),
        ({"json": {"$ref": "file:///etc/passwd"}}, "Resource"),
        ({"json": {"$ref": "#/$defs/none"}}, "none"),
        ({"json": {"$ref": "#"}}, "no text has this form"),
        ({"json": DEEP}, "recursion|nested|deep"),
        ({"json": '{"a": '}, "compiled"),
        ({"regex": "a{1000000}"}, "too many|processor time"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": "x?" * 70000}, f"{MOST_CHARACTERS} are taken"),
        ({"grammar": "start: x"}, "unknown name"),
        ({"grammar": '%import "/etc/passwd"\nstart: "a"'}, "compiled"),
        ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "nested"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_bounded_time(
    given: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "SECONDS", 300)  # the clock of a busy machine is no bound
    started = time.process_time()
    with pytest.raises(UserError, match=says):
        answers(MODEL, StructuredOutputs(**given))
    assert time.process_time() - started < 20, "others wait while this process compiles"
    (one,) = answers(MODEL, StructuredOutputs(choice=["on"]))
    assert one.text == "on"


def test_references_that_grow_exponentially_are_followed() -> None:
    schema = {"$defs": REFERENCES | {"d200": {"const": 1}}, "$ref": "#/$defs/d0"}
    (one,) = answers(MODEL, StructuredOutputs(json=schema))
    assert one.text == "1"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"regex": "a", "choice": ["b"]},
        {"json_object": True, "json": {}},
        {"choice": []},
        {"choice": ["a", ""]},
        {"choice": "ab"},
        {"regex": ""},
        {"json": {"const": {1, 2}}},
        {"json": float("nan")},
        *({"json": wrong} for wrong in ([], True, 5, ["a"])),
        {"json_object": "no"},
        {"json": {}, "lenient": "no"},
    ],
)
def test_no_single_form_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        StructuredOutputs(**given)


def test_a_clients_object_names_the_form() -> None:
    assert StructuredOutputs.of({"choice": ["a"]}) == StructuredOutputs(choice=["a"])
    for wrong in ([], "a", {"jsn": {}}, {"lenient": True, "json": {}}, {}, {"regex": 5}):
        with pytest.raises(UserError):
            StructuredOutputs.of(wrong)


def test_a_lenient_schema_ignores_what_cannot_be_enforced() -> None:
    schema = {"type": "integer", "minimum": 3, "maximum": 9, "not": {"const": 4}}
    (one,) = answers(MODEL, StructuredOutputs(json=schema, lenient=True))
    assert 3 <= int(one.text) <= 9


def test_a_grammar_is_compiled_once() -> None:
    made = Grammars(byte_level(), 257)
    form = StructuredOutputs(json={"type": "string"})
    assert made.compile(form) is made.compile(StructuredOutputs(json={"type": "string"}))


def test_a_grammar_that_explodes_within_an_answer_ends_only_that_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one does that no trial has found."""
    monkeypatch.setattr(Pool, "ask", lambda _, given: {"grammar": library.grammar_of(*given)})
    llm = make()
    form = StructuredOutputs(regex="a{1000000}")
    exploding = llm.submit(llm.read([1], SamplingParams(structured_outputs=form)))
    beside = llm.submit(llm.read([2], SamplingParams(max_tokens=9, ignore_eos=True)))
    parts = drain(llm)
    assert isinstance(parts[exploding][-1].exception, GrammarError)
    assert parts[beside][-1].finish_reason == "length" and len(parts[beside]) == 9


def test_a_tokenizer_of_another_kind_or_none_is_refused() -> None:
    form = StructuredOutputs(choice=["stop"])
    with pytest.raises(UserError, match="tokenizer"):
        LLM.from_executor(FakeExecutor(make_limits())).generate(
            [[1]], SamplingParams(structured_outputs=form)
        )
    with pytest.raises(UserError, match="tokenizer"):
        answers(make(tokenizer=words(), eos_token_id=frozenset()), form)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "snapexport.runtime.requests.grammars.library"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(grammars, "library")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"llguidance.*snapexport\[serve\]"):
        answers(make(), StructuredOutputs(regex="a"))
