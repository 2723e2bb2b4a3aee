"""Walks the schemas within a JSON schema, and none of the values of enum, const or default."""

from collections.abc import Callable, Mapping
from typing import Any

DEFINITIONS = "$defs", "definitions"

_OF_SCHEMAS = "properties", "patternProperties", *DEFINITIONS
"""Keywords whose value is an object of schemas."""

CHOICES = "anyOf", "oneOf"

JOINS = "allOf", *CHOICES

_ONE_OR_SEVERAL = "items", "prefixItems", "additionalItems", "additionalProperties"


def mapped(
    schema: Mapping[str, Any], alone: Callable[[Any], Any], joined: Callable[[Any], Any]
) -> dict[str, Any]:
    """The schema with others in place of those within. joined: of what it is joined of."""

    def part(key: str, value: Any) -> Any:
        if key in _OF_SCHEMAS and isinstance(value, Mapping):
            return {name: alone(one) for name, one in value.items()}
        if key in JOINS or key in _ONE_OR_SEVERAL:
            each = joined if key in JOINS else alone
            return [each(one) for one in value] if isinstance(value, list) else each(value)
        return value

    return {key: part(key, value) for key, value in schema.items()}
