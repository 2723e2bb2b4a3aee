"""What llguidance refuses of a schema is dropped if it is lenient, and nothing else."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapexport.errors import UserError
from snapexport.runtime.requests.grammars import library
from snapexport.runtime.requests.grammars.schemas import acceptable
from tests.runtime.tokenizers_for_tests import byte_level

BYTES = byte_level()
TOKENIZER = library.Vocabulary.of(BYTES).open()
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
OF_A: Any = {
    "properties": dict.fromkeys("abc", True),
    "required": ["a"],
    "additionalProperties": False,
}
MORE = {"properties": dict.fromkeys("abcd", True)}
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def compile_schema(schema: Any, lenient: bool) -> None:
    library.matcher_of(TOKENIZER, library.grammar_of("json", json.dumps(schema), lenient))


def test_numbers_beyond_doubles_are_refused_or_exclude_nothing() -> None:
    for number in ("1e999", "-1E+400", "Infinity"):
        with pytest.raises(UserError, match=f"has the number {re.escape(number)}"):
            library.grammar_of("json", f'{{"items": {{"maximum": {number}}}}}', True)
    far = {"type": "number", "minimum": -(10**400), "maximum": 10**400}
    assert acceptable(far, lenient=False) == {"type": "number"}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        *[
            ({"type": "string", "pattern": pattern, "minLength": 2}, {"minLength": 2})
            for pattern in (DECIMAL, r"\bfoo", r"(a)\1", r"(?P<n>a)(?P=n)", r"\\\B", r"(?<=a)b")
        ],
        (INT64, {"maximum": 2**63 - 1}),
        ({"type": "integer", "exclusiveMinimum": 10**18}, {}),
        ({"type": "number", "minimum": -1.797e308, "maximum": 1.797e308}, {}),
        ({"type": "number", "minimum": 5e-324, "maximum": 2}, {"maximum": 2}),
        ({"type": "string", "maxLength": 2**53 - 1}, {}),
        ({"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}, {}),
        ({"patternProperties": {"a": {}, "^b": True}, "additionalProperties": False}, {}),
        ({"const": 2**53 + 1}, {}),
        ({"enum": ["a", {"b": [1 - 2**63]}]}, {}),
        (OF_A | MORE | {"type": "object", "minProperties": 3}, OF_A | MORE),
        (
            {"type": "object", "properties": {"a": {}}, "minProperties": 1},
            {"properties": {"a": {}}},
        ),
        ({"const": 10**400}, {}),
    ],
)
def test_what_is_refused_is_dropped_of_a_lenient_schema(schema: Any, left: Any) -> None:
    kept = {"type": schema["type"]} if "type" in schema else {}
    assert acceptable(schema, True) == kept | left
    for key, inside in {"items": schema, "anyOf": [schema], "properties": {"enum": schema}}.items():
        compile_schema({key: inside}, True)
        with pytest.raises(
            UserError,
            match=r"look|not support|range|invalid|disjoint|escape|parse|double|repeat|maxProp",
        ):
            compile_schema({key: inside}, False)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [{"pattern": r"\b"}], "default": INT64, "examples": [INT64], "const": 2**60},
        {"pattern": r"^\\b[\w.-]\/(?:\(?=a)(?i)(?P<n>\p{L})\u0041$"},
        {"type": "number", "minimum": -9e18, "maximum": 9e18, "exclusiveMinimum": 0},
        {"patternProperties": {"^S_": {}, "^I_": {}, r"^b\.": {}}, "additionalProperties": False},
        {"patternProperties": {"^a$": {}, "^ab$": {}}},
        {"properties": {"pattern": {}, "minimum": True}, "type": ["object", "null"]},
        {"type": 5, "maximum": "a", "pattern": 3, "patternProperties": 4, "minLength": None},
        True,
    ],
)
def test_what_is_not_such_a_keyword_stays(schema: Any) -> None:
    assert acceptable(schema, True) == acceptable(schema, False) == schema


def test_bounds_between_two_doubles_go_inwards() -> None:
    P = 2**53
    bounds = {"minimum": P + 1, "exclusiveMinimum": P + 3, "maximum": P + 5, "exclusiveMaximum": 7}
    inwards = {"minimum": P + 2, "exclusiveMinimum": P + 4, "maximum": P + 4, "exclusiveMaximum": 7}
    assert acceptable(bounds, False) == acceptable(bounds, True) == inwards
    assert acceptable({"minimum": -P - 1}, True) == {"minimum": -P}


def test_counts_may_be_whole_floats() -> None:
    counts = {"type": "array", "minItems": 1.0, "items": {"type": "string", "maxLength": 3.0}}
    compile_schema(counts, False)
    assert acceptable({"minItems": 1.5}, True) == {"minItems": 1.5}


@given(st.lists(st.text("ab^$*?|{}", max_size=5), unique=True))
@example(["^a{2}", "^b|a"])
def test_patterns_that_are_kept_are_disjoint(patterns: list[str]) -> None:
    schema = {"type": "object", "patternProperties": dict.fromkeys(patterns, True)}
    if acceptable(schema, True) == schema and len(patterns) > 1:
        error = llguidance_error(schema)
        assert "disjoint" not in error


def llguidance_error(schema: Any) -> str:
    try:
        compile_schema(schema, True)
    except UserError as error:
        return str(error)
    return ""


def test_a_schema_that_is_too_deep_is_left_to_llguidance() -> None:
    schema: Any = {"minItems": 1.0}
    for _ in range(5000):
        schema = {"items": schema}
    assert acceptable(schema, True) is schema


@pytest.mark.parametrize("lenient", [False, True])
def test_names_of_records_may_be_any(lenient: bool) -> None:
    record = {"type": "object", "additionalProperties": {"type": "null"}}
    compile_schema(record | {"propertyNames": {"type": "string"}}, lenient)
    assert acceptable(record | {"propertyNames": {}}, lenient) == record
    bounded = record | {"propertyNames": {"maxLength": 3}}
    assert acceptable(bounded, lenient) == bounded


OPEN: Any = {"type": "object", "additionalProperties": {"enum": [1]}}
PATTERN: Any = {
    "type": "object",
    "patternProperties": {"^[ab]$": {}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        OPEN | {"minProperties": 2},
        OPEN | {"minProperties": 2, "required": ["a"]},  # "\\u0061" is a, too
        PATTERN | {"minProperties": 2},
        {"type": "object", "patternProperties": {"^k$": {}}, "minProperties": 2.0},
        {"$ref": "#/components/a", "components": {"a": PATTERN | {"minProperties": 2}}},
        {"allOf": [PATTERN, {"minProperties": 2}]},
    ],
)
def test_strict_bounds_that_repeated_names_would_reach_are_refused(schema: Any) -> None:
    for one in (schema, {"items": schema}, {"$defs": {"a": schema}, "$ref": "#/$defs/a"}):
        with pytest.raises(UserError, match=r"minProperties 2.* counts names that may repeat"):
            acceptable(one, False)
    compile_schema(schema, True)


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (OPEN | {"minProperties": 1}, '{"b":1}', "{}"),
        (OPEN | {"minProperties": 2, "required": ["a", "b"]}, '{"a":1,"b":1}', '{"a":1,"c":1}'),
        (PATTERN | {"minProperties": 2, "required": ["a"]}, '{"a":1,"b":1}', '{"a":1,"a":1}'),
        (OF_A | {"minProperties": 2}, '{"a":1,"c":1}', '{"a":1}'),
        (OF_A | {"minProperties": 1}, '{"a":1}', "{}"),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "4", "3"),
        ({"type": "integer", "maximum": 3, "exclusiveMaximum": False}, "3", "4"),
    ],
)
def test_what_strict_bounds_take(schema: Any, taken: str, refused: str) -> None:
    for text, is_taken in ((taken, True), (refused, False)):
        matcher = library.matcher_of(
            TOKENIZER, library.grammar_of("json", json.dumps(schema), False)
        )
        tokens = BYTES.encode(text).ids
        found = all(matcher.consume_token(token) for token in tokens) and matcher.is_accepting()
        assert found == is_taken


def test_too_many_properties_are_refused_before_they_are_compiled() -> None:
    many: Any = {f"p{number}": {"type": "integer"} for number in range(1000)}
    for lenient in (True, False):
        with pytest.raises(UserError, match="1,000 properties in a row"):
            acceptable({"items": {"properties": many}}, lenient)
    half = {"properties": many, "required": [*many][::2]}
    assert acceptable(half, False) == half
