"""Grammars of forced calls: of each format, what it allows is what its parser reads."""

from typing import Any

import pytest
from tokenizers import AddedToken

from snapexport.errors import UserError
from snapexport.runtime.chat.parsers.answer_grammars import MOST_CALLS, Wrap
from snapexport.runtime.chat.parsers.parser import CallArguments, CallBegun, CallEnded, join_texts
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


ARGUMENTS = '{"a": "x", "b": 2}'
EVENTS = [CallBegun("f"), CallArguments(ARGUMENTS), CallEnded(is_valid=True)]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("added", [False, True], ids=["as text", "as added tokens"])
@pytest.mark.parametrize("row", TOOL_FORMATS, ids=lambda row: row.name)
def test_forced_calls_are_those_that_the_parser_reads(
    row: ToolFormat, added: bool, several: bool
) -> None:
    tokenizer = byte_level()
    if added:
        tokenizer.add_tokens([AddedToken(t, special=False) for t in row.texts if t.strip("`;")])
    known = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
    opened = library.Vocabulary.of(tokenizer).open()
    form = OutputFormat(row)
    grammar = library.grammar_of("grammar", form.grammar(TOOLS, ["g"], known, several), False)

    def takes(text: str) -> bool:
        matcher = library.matcher_of(opened, grammar)
        tokens = tokenizer.encode(text).ids
        return all(matcher.consume_token(token) for token in tokens) and matcher.is_accepting()

    def text(*arguments: str) -> str:
        wrap = row.wrap or Wrap()
        calls = [f"{wrap.before}f{wrap.between}{each}{wrap.after}" for each in arguments]
        return f"{wrap.opens}{(wrap.separator or '').join(calls)}{wrap.closes}"

    around = form.or_calls("", TOOLS, ["g"], known)
    if around:
        regex = library.grammar_of("json", '{"type": "object", "maxProperties": 0}', False)
        grammar = library.embed(around, regex)
        begins = row.starts[0] if row.wrap is None else text(ARGUMENTS)
        assert takes("{}") and takes(begins) and not takes("x")
        grammar = library.grammar_of("grammar", form.grammar(TOOLS, ["g"], known, several), False)
    told_apart = row.starts and row.name not in ("llama3_json", "generic")
    assert bool(around) is bool(told_apart)

    most = MOST_CALLS if several and row.wrap and row.wrap.separator is not None else 1
    breaks = "\n" if most > 1 and row.wrap and row.wrap.separator == "\n" else ""
    for count in {1, most}:
        calls = text(*[ARGUMENTS] * count)
        if row.wrap and breaks:
            calls = f"{calls.removesuffix(row.wrap.closes)}{breaks}{row.wrap.closes}"
        assert takes(calls)
        parser = form.forced_parser(TOOLS, None)
        assert join_texts([*parser.push(calls), *parser.finish()]) == EVENTS * count
    assert not takes(text(*[ARGUMENTS] * (most + 1)))
    assert not takes(text(ARGUMENTS.replace("2", "3")))


def compile_calls(tools: dict[str, Any], strict: list[str]) -> None:
    text = OutputFormat(TOOL_FORMATS[0]).grammar(tools, strict, {}, True)
    tokenizer = library.Vocabulary.of(byte_level()).open()
    library.matcher_of(tokenizer, library.grammar_of("grammar", text, False))


@pytest.mark.parametrize("kind", ["string", ["array", "null"], None])
def test_parameters_that_no_object_matches_are_refused(kind: Any) -> None:
    with pytest.raises(UserError, match='parameters of "g" must be an object'):
        compile_calls(TOOLS | {"g": {"type": kind}}, [])
    compile_calls(TOOLS | {"g": {"type": ["object", "null"]}}, [])


def test_the_tool_whose_schema_is_refused_is_named() -> None:
    """What can't be enforced is refused of a strict tool, and ignored of another."""
    tools = TOOLS | {"g": {"properties": {"a": {"pattern": r"\bx", "minItems": 1.0}}}}
    compile_calls(tools, ["f"])
    with pytest.raises(UserError, match=r'compiled: parameters of "g": look.* /\\bx/ \(simplify'):
        compile_calls(tools, ["g"])
    tools = {"g": {"properties": {"a": {"const": 2**53 + 1}}}}
    compile_calls(tools, [])
    with pytest.raises(UserError, match=r'parameters of "g": a schema.* const .* double'):
        compile_calls(tools, ["g"])
