"""Random JSON schemas whose answers are short, and a check of values against them."""

import re
from typing import Any

from hypothesis import strategies as st

LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.sampled_from([{"const": "é"}, {"const": {"a": [1, None]}}, {"$ref": "#/$defs/leaf"}]),
    st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=4)), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
    st.tuples(st.integers(-200, 200), st.integers(0, 300)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    ),
    st.tuples(st.integers(0, 3), st.integers(0, 5)).map(
        lambda pair: {"type": "string", "minLength": pair[0], "maxLength": sum(pair)}
    ),
    st.just({"type": "string", "pattern": "^[a-c]{2,4}$"}),
)


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(["a", "b", "é\n", '"', "long name"]), unique=True, max_size=4)

    def made(pair: tuple[list[str], list[dict[str, Any]], int]) -> dict[str, Any]:
        keys, schemas, required = pair
        return {
            "type": "object",
            "properties": dict(zip(keys, schemas, strict=False)),
            "required": keys[:required],
            "additionalProperties": False,
        }

    each = st.lists(inner, min_size=4, max_size=4)
    return st.tuples(names, each, st.integers(0, 4)).map(made)


def _arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda of: {"type": "array", "items": of[0], "minItems": of[1], "maxItems": of[1] + of[2]}
    )


SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        _objects(inner),
        _arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
    ),
    max_leaves=6,
).map(lambda schema: {"$defs": {"leaf": {"type": "boolean"}}} | schema)

TYPES: dict[str, Any] = {
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "string": str,
    "array": list,
    "object": dict,
}


def is_valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """By the keywords above alone."""
    if "$ref" in schema:
        return is_valid(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return any(is_valid(value, one, root) for one in schema["anyOf"])
    if "const" in schema:
        return bool(value == schema["const"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        return False
    if kind == "integer":
        return bool(schema["minimum"] <= value <= schema["maximum"])
    if kind == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength", 99)
        return least <= len(value) <= most and bool(re.search(schema.get("pattern", ""), value))
    if kind == "array":
        fits = schema["minItems"] <= len(value) <= schema["maxItems"]
        return fits and all(is_valid(one, schema["items"], root) for one in value)
    return kind != "object" or (
        set(schema["required"]) <= set(value)
        and all(
            name in schema["properties"] and is_valid(one, schema["properties"][name], root)
            for name, one in value.items()
        )
    )
