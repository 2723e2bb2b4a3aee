"""Closes the objects of a JSON schema that says nothing of further properties.

Clients mean the properties that they name, and small models go on to invent others. vLLM closes
objects too. A schema that means more says `additionalProperties: true`.
"""

from collections.abc import Mapping
from typing import Any

_OF_SCHEMAS = "properties", "patternProperties", "$defs", "definitions"
"""Keywords whose value is an object of schemas."""

_LISTS = "anyOf", "oneOf", "allOf", "prefixItems"

_ONE = "items", "additionalProperties"

_SAYS = "additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties"
"""Beside these, an object is left as it is."""

_JOINS = frozenset({"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"})
"""Beside properties, these may bring further ones."""


class _JoinedError(Exception):
    """An object must match two schemas: if both are closed, none does."""


def closed(schema: Any) -> Any:
    """The schema with closed objects; as it is if objects in it must match several schemas."""
    try:
        return _closed(schema)
    except _JoinedError:
        return schema


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    has_properties = isinstance(schema.get("properties"), Mapping)
    every = schema.get("allOf")
    if (has_properties and not _JOINS.isdisjoint(schema)) or (
        isinstance(every, list) and len(every) > 1
    ):
        raise _JoinedError
    found = {key: _part(key, value) for key, value in schema.items()}
    if has_properties and _may_close(schema):
        found["additionalProperties"] = False
    return found


def _part(key: str, value: Any) -> Any:
    if key in _OF_SCHEMAS and isinstance(value, Mapping):
        return {name: _closed(inner) for name, inner in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [_closed(inner) for inner in value]
    return _closed(value) if key in _ONE else value


def _may_close(schema: Mapping[str, Any]) -> bool:
    required, known = schema.get("required", []), schema["properties"]
    if any(key in schema for key in _SAYS) or not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in known for name in required)
