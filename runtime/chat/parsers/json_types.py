"""Tells which of JSON's types the parameters of a tool may have."""

from collections.abc import Mapping
from typing import Any

from snapexport.runtime.requests.grammars.pointers import found_at

_OF_PYTHON = {str: "string", bool: "boolean", int: "integer", float: "number"}
_OF_PYTHON |= {type(None): "null", list: "array", dict: "object"}
_ALL = frozenset(_OF_PYTHON.values())

Types = frozenset[str]
TEXT: Types = frozenset(["string"])


def type_of(value: Any) -> str:
    """The type of a value that was read from JSON."""
    return _OF_PYTHON.get(type(value), "")


class ParameterTypes:
    """Of a tool, as far as type, enum, const, choices and $ref in its schema say."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, Types] = {}
        """By identity: schemas may lead to themselves, and hostile ones repeat their references."""

    def of(self, name: str) -> Types:
        """Those of a parameter. A text if the tool doesn't know it; all if nothing is said."""
        properties = self._root.get("properties")
        schema = properties.get(name) if isinstance(properties, dict) else None
        try:
            return TEXT if schema is None else self._of(schema)
        except RecursionError:
            return _ALL

    def _of(self, schema: Any) -> Types:
        if not isinstance(schema, Mapping):
            return _ALL
        if id(schema) not in self._known:
            self._known[id(schema)] = _ALL
            self._known[id(schema)] = self._found(schema)
        return self._known[id(schema)]

    def _found(self, schema: Mapping[str, Any]) -> Types:
        found = _own(schema)
        if "$ref" in schema:
            found &= self._of(found_at(self._root, schema["$ref"]))
        for one in _listed(schema, "allOf"):
            found &= self._of(one)
        for key in "anyOf", "oneOf":
            if choices := _listed(schema, key):
                found &= Types().union(*map(self._of, choices))
        return found


def _own(schema: Mapping[str, Any]) -> Types:
    """The types by what a schema itself says."""
    kind = schema.get("type", list(_ALL))
    kinds = kind if isinstance(kind, list) else [kind]
    found = Types(one for one in _ALL if one in kinds or (one == "integer" and "number" in kinds))
    values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
    return found & Types(map(type_of, values)) if values else found


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    return value if isinstance(value := schema.get(key), list) else []
