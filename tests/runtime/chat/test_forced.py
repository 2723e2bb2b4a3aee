"""Grammars of forced calls: of each format, what it allows is what its parser reads."""

from typing import Any

import pytest
from tokenizers import AddedToken

from snapexport.runtime.chat.parsers.forced import Wrap
from snapexport.runtime.chat.parsers.parser import CallArguments, CallBegun, CallEnded, joined
from snapexport.runtime.chat.parsers.table import TOOL_FORMATS, OutputFormat, ToolFormat
from snapexport.runtime.requests.grammars import library
from tests.runtime.tokenizers_for_tests import byte_level

TOOLS: dict[str, Any] = {
    "f": {
        "properties": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/B"}},
        "$defs": {"B": {"enum": [1, 2]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "g": {},
}


@pytest.mark.parametrize("added", [False, True], ids=["as text", "as added tokens"])
@pytest.mark.parametrize("row", TOOL_FORMATS, ids=lambda row: row.name)
def test_a_forced_call_is_one_that_the_parser_reads(row: ToolFormat, added: bool) -> None:
    tokenizer = byte_level()
    if added:
        tokenizer.add_tokens([AddedToken(t, special=False) for t in row.texts if t.strip("`;")])
    known = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
    vocabulary = library.Vocabulary.of(tokenizer)
    opened = vocabulary.open()
    form = OutputFormat(row)
    grammar = library.grammar_of("grammar", form.grammar(TOOLS, ["g"], known), False)
    wrap = row.wrap or Wrap()
    text = f'{wrap.before}f{wrap.between}{{"a": "x", "b": 2}}{wrap.after}'
    matcher = library.matcher_of(opened, grammar)
    assert all(matcher.consume_token(token) for token in tokenizer.encode(text).ids)
    assert matcher.is_accepting()
    parser = form.forced_parser(TOOLS, None)
    assert joined([*parser.push(text), *parser.finish()]) == [
        CallBegun("f"),
        CallArguments('{"a": "x", "b": 2}'),
        CallEnded(is_valid=True),
    ]
    matcher = library.matcher_of(opened, grammar)
    wrong = tokenizer.encode(text.replace('"b": 2', '"b": 3')).ids
    assert not all(matcher.consume_token(token) for token in wrong)
