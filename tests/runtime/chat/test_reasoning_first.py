"""Grammars of reasoning before a form: what they allow is what the parser splits there."""

import re

import pytest
from tokenizers import AddedToken, Tokenizer

from snapexport.runtime.chat.parsers.parser import Content, Reasoning
from snapexport.runtime.chat.parsers.table import REASONING_FORMATS, OutputFormat, ReasoningFormat
from snapexport.runtime.requests.grammars import library
from tests.runtime.tokenizers_for_tests import byte_level

ROWS = [row for row in REASONING_FORMATS if row.syntax]
FORMS = [
    ("regex", "(?s:.*)x", "<x>ax"),
    ("json", '{"type": "boolean"}', "true"),
    ("choice", '["<a", "b"]', "<a"),
    ("grammar", 'start: "a" "b"? N\nN: /[0-9]/', "ab1"),
    ("grammar", 'root ::= "b" [0-9] [0-9]', "b11"),
]


def tokens(text: str, added: Tokenizer) -> list[int]:
    """The added tokens in a text, but for what a ~ breaks, as single bytes."""
    return [token for part in text.split("~") for token in added.encode(part).ids]


@pytest.mark.parametrize("added", [False, True], ids=["as text", "as added tokens"])
@pytest.mark.parametrize("is_open", [False, True], ids=["may open", "is open"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_form_is_enforced_after_the_end_of_reasoning(
    row: ReasoningFormat, is_open: bool, added: bool
) -> None:
    assert row.syntax
    opens, closes = row.syntax.opens, row.syntax.closes
    tokenizer = byte_level()
    if added:
        marks = [*re.findall("<.*?>", opens + closes), "<x>"]
        tokenizer.add_tokens([AddedToken(mark, special=False) for mark in marks])
    known = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
    opened = library.Vocabulary.of(tokenizer).open()
    formats = OutputFormat(None, row)
    prompt = f"[user]{opens if is_open else ''}\n"
    outer = formats.before_form(prompt, True, known)
    begins = "" if is_open else opens
    broken = f"{closes[0]}~{closes[1:]}"
    thinks = [f"{begins}\nHm, <x> {closes[:-1]} é{opens} ", f"{begins}Hm"]
    for kind, form, text in FORMS:
        grammar = library.embed(outer, library.grammar_of(kind, form, False))

        def accepts(answer: str, grammar: str = grammar) -> bool:
            matcher = library.matcher_of(opened, grammar)
            taken = all(matcher.consume_token(token) for token in tokens(answer, tokenizer))
            return taken and matcher.is_accepting()

        for thought in thinks:
            for end in (closes, broken, f"{closes}\n\n"):
                if not text.startswith("<x>") or not added:
                    assert accepts(f"{thought}{end}{text}"), (thought, end, form)
                assert not accepts(f"{thought}{end}!{text}!")
                assert not accepts(f"{thought}{end}")
            parser = formats.parser({}, prompt)
            events = [*parser.push(f"{thought}{closes}{text}"), *parser.finish()]
            reasoning = thought.removeprefix(begins).strip()
            assert events == [Reasoning(reasoning), Content(text)]
        assert accepts(text) is (not is_open and not (added and "<x>" in text))


@pytest.mark.parametrize("row", REASONING_FORMATS, ids=lambda row: row.name)
def test_nothing_comes_before_a_form_where_reasoning_is_over_or_unknown(
    row: ReasoningFormat,
) -> None:
    formats = OutputFormat(None, row)
    assert not formats.before_form("[user]", False, {})
    assert not OutputFormat().before_form("<think>", True, {})
    if row.syntax:
        off = f"[user]{row.syntax.opens}\n\n{row.syntax.closes}\n\n"
        assert not formats.before_form(off, True, {})
        assert formats.before_form(f"[user]{row.syntax.opens}", False, {})
    else:
        assert not formats.before_form("[user]", True, {})
