"""Objects are closed where a schema names their properties, if it leaves any answer."""

import json
import time
from itertools import product
from typing import Any

import pytest

from snapexport.runtime.requests.grammars import library
from snapexport.runtime.requests.grammars.grammar import Grammars
from snapexport.runtime.requests.grammars.schemas import close_objects
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from tests.runtime.tokenizers_for_tests import byte_level

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = A | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (A, CLOSED),
        (A | {"unevaluatedProperties": False}, CLOSED),
        ({"$defs": {"a": A}, "$ref": "#/$defs/a"}, {"$defs": {"a": CLOSED}, "$ref": "#/$defs/a"}),
        ({"items": A, "prefixItems": [A]}, {"items": CLOSED, "prefixItems": [CLOSED]}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"allOf": [A]}, {"allOf": [CLOSED]}),
        ({"additionalProperties": A}, {"additionalProperties": CLOSED}),
        (
            {"properties": {"properties": A, "allOf": A}},
            {"properties": {"properties": CLOSED, "allOf": CLOSED}, "additionalProperties": False},
        ),
    ],
)
def test_objects_with_named_properties_are_closed(schema: Any, wanted: Any) -> None:
    assert close_objects(schema) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        A | {"additionalProperties": True},
        A | {"patternProperties": {"^b": {}}},
        A | {"required": ["a", "b"]},
        A | {"patternProperties": {"^b": {}}, "unevaluatedProperties": False},
        A | {"unevaluatedProperties": {"type": "string"}},
        A | {"minProperties": 2},
        A | {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
        {"allOf": [A, {"properties": {"b": {}}, "required": ["c"]}]},
        {"allOf": [A, A | {"additionalProperties": True}]},
        {"allOf": [A, {"$ref": "https://example.com/a"}]},
        A | {"if": {"required": ["b"]}, "then": {}},
        {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        {"type": "object"},
        {"const": A},
        {"enum": [A]},
        {"default": A},
        {"properties": 3, "allOf": 4, "anyOf": {}, "items": [1]},
        {"properties": {}, "required": 3},
        {"properties": {}, "required": [[1]]},
        True,
        [A],
        "text",
    ],
)
def test_what_means_more_or_is_not_a_schema_stays_as_it_is(schema: Any) -> None:
    assert close_objects(schema) == schema


B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}}
OPEN_A, OPEN_B = {"a": True}, {"b": True}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (
            {"allOf": [A, B]},
            {"allOf": [A, B], "properties": OPEN_A | OPEN_B, "additionalProperties": False},
        ),
        (
            A | {"anyOf": [B, {"required": ["a"]}]},
            A
            | {
                "anyOf": [
                    CLOSED_B := B
                    | {"properties": B["properties"] | OPEN_A, "additionalProperties": False},
                    {"required": ["a"], "properties": OPEN_A, "additionalProperties": False},
                ]
            },
        ),
        (
            {"$defs": {"a": A}, "$ref": "#/$defs/a", "properties": {"b": {}}},
            {
                "$defs": {"a": CLOSED, "open0": A},
                "$ref": "#/$defs/open0",
                "properties": {"b": {}, "a": True},
                "additionalProperties": False,
            },
        ),
        (
            {"$defs": {"a": A}, "items": A | {"anyOf": [B, {"$ref": "#/$defs/a"}]}},
            {
                "$defs": {"a": CLOSED, "open0": A},
                "items": A
                | {
                    "anyOf": [
                        CLOSED_B,
                        {
                            "$ref": "#/$defs/open0",
                            "properties": OPEN_A,
                            "additionalProperties": False,
                        },
                    ]
                },
            },
        ),
        (A | {"anyOf": [B | {"additionalProperties": False}]},) * 2,
    ],
)
def test_joined_objects_are_closed_with_the_names_of_all(schema: Any, wanted: Any) -> None:
    assert close_objects(schema) == wanted


CHILD = {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}
LEAF = {"properties": {"value": {"const": 1}}, "required": ["value"]}
FORK = {"properties": {"left": CHILD, "right": CHILD}, "required": ["left", "right"]}
TREE = {
    "$defs": {
        "tree": A | {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/fork"}]},
        "leaf": LEAF,
        "fork": FORK,
    },
    "$ref": "#/$defs/tree",
}
BRANCHES = {"required": ["a"], "anyOf": [{"$ref": "#/$defs/B"}, {"required": ["c"]}]}
BOTH = A | BRANCHES | {"$defs": {"B": B | {"required": ["b"]}}}
OF_C = A | {"allOf": [{"properties": {"c": A}}, {"properties": {"c": B}, "required": ["c"]}]}


@pytest.mark.parametrize(
    ("schema", "text", "is_taken"),
    [
        ({"allOf": [A, B]}, '{"a":1,"b":2}', True),
        ({"allOf": [A, B]}, '{"a":1,"c":2}', False),
        ({"allOf": [A, B]}, '{"a":"x"}', False),
        (BOTH, '{"a":1,"b":2}', True),
        (BOTH, '{"a":1,"b":2,"d":3}', False),
        (BOTH, '{"a":1,"c":[],"d":3}', True),  # nobody says what c is
        (TREE, '{"a":1,"left":{"value":1},"right":{"a":2,"left":null,"right":null}}', True),
        (TREE, '{"a":1,"left":{"value":1},"right":{"a":2,"left":null,"right":{}}}', False),
        (TREE, '{"left":{"value":1,"left":null},"right":null}', False),
        (OF_C, '{"c":{"a":1,"b":2}}', False),  # closed, though it is joined within
        (OF_C, '{"c":{}}', True),
    ],
)
def test_what_grammars_take_of_joined_objects(schema: Any, text: str, is_taken: bool) -> None:
    vocabulary = library.Vocabulary.of(tokenizer := byte_level())
    grammar = library.grammar_of("json", json.dumps(schema), False)
    matcher = library.matcher_of(vocabulary.open(), grammar)
    tokens = tokenizer.encode(text).ids
    taken = all(matcher.consume_token(token) for token in tokens) and matcher.is_accepting()
    assert taken == is_taken


def test_what_no_answer_would_be_left_to_stays_open() -> None:
    """Of objects that two schemas name under one property, each is closed by itself."""
    both = OF_C["allOf"][0], {"properties": {"c": B | {"required": ["b"]}}, "required": ["c"]}
    Grammars(byte_level(), 257).compile(StructuredOutputs(json={"allOf": both}))


def test_names_of_a_hostile_schema_are_not_multiplied() -> None:
    count = 2000
    chain = {
        f"d{n}": {"properties": {f"p{n}": {}}, "$ref": f"#/$defs/d{n + 1}"} for n in range(count)
    }
    started = time.process_time()
    found = close_objects(
        {"$defs": chain | {f"d{count}": A}, "$ref": "#/$defs/d0", "properties": {}}
    )
    assert time.process_time() - started < 5 and len(json.dumps(found)) < 2_000_000


def test_a_schema_is_copied_once_however_its_pointers_are_spelled() -> None:
    name = "abcdefghij"
    spelled = product(*((letter, f"%{ord(letter):02x}") for letter in name))
    every = [{"$ref": f"#/$defs/{''.join(letters)}"} for letters in spelled]
    found = close_objects({"$defs": {name: A}, "allOf": every})
    assert len(every) == 1024 and len(found["$defs"]) == 2
