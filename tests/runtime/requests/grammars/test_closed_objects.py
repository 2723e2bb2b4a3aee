"""Objects are closed where a schema names their properties, if it leaves any answer."""

from typing import Any

import pytest

from snapexport.runtime.requests.grammars.closed_objects import closed

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = A | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (A, CLOSED),
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
    assert closed(schema) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        A | {"additionalProperties": True},
        A | {"patternProperties": {"^b": {}}},
        A | {"required": ["a", "b"]},
        A | {"minProperties": 2},
        A | {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
        {"allOf": [A, {"properties": {"b": {}}, "required": ["b"]}]},
        {"$defs": {"a": A}, "$ref": "#/$defs/a", "properties": {"b": {}}},
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
def test_what_means_more_or_is_no_schema_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema
