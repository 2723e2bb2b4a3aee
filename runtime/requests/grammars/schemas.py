"""Puts JSON schemas into what llguidance takes, and closes the objects that they leave open.

Of a lenient schema it drops what llguidance refuses.

Clients mean the properties that they name, and small models go on to invent others. vLLM closes
objects too. A schema that means more says `additionalProperties: true`.

An object may be joined of several schemas, by allOf, anyOf, oneOf, $ref or properties beside
another. If each were closed, no answer would match them all: the whole is closed instead, with the
names of all of them, and they stay open.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from itertools import groupby, pairwise
from typing import Any, Final
from urllib.parse import unquote

from snapexport.errors import UserError

DEFINITIONS = "$defs", "definitions"

_OF_SCHEMAS = "properties", "patternProperties", *DEFINITIONS
"""Keywords whose value is an object of schemas."""

CHOICES = "anyOf", "oneOf"

JOINS = "allOf", *CHOICES

_ONE_OR_SEVERAL = "items", "prefixItems", "additionalItems", "additionalProperties"


def map_subschemas(
    schema: Mapping[str, Any], single: Callable[[Any], Any], joined: Callable[[Any], Any]
) -> dict[str, Any]:
    """The schema with others in place of those within. joined: of what it is joined of."""

    def part(key: str, value: Any) -> Any:
        if key in _OF_SCHEMAS and isinstance(value, Mapping):
            return {name: single(one) for name, one in value.items()}
        if key in JOINS or key in _ONE_OR_SEVERAL:
            each = joined if key in JOINS else single
            return [each(one) for one in value] if isinstance(value, list) else each(value)
        return value

    return {key: part(key, value) for key, value in schema.items()}


FAR: Final = object()
"""What a reference to elsewhere, or to nothing, points to."""


def found_at(root: Any, pointer: Any) -> Any:
    """The target of a reference such as #/$defs/a points to; FAR if it is not in there."""
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        return FAR
    place = root
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and key in place:
            place = place[key]
        elif isinstance(place, list) and key in map(str, range(len(place))):
            place = place[int(key)]
        else:
            return FAR
    return place


_SAYS = "patternProperties", "unevaluatedProperties", "minProperties", "if", "dependentSchemas"
"""Beside these, an object is left as it is."""

_MOST_NAMES = 20_000
"""Looked at in joined objects. Those beyond are left open: a hostile schema repeats its names."""


class _OpenError(Exception):
    """An object means more than the properties that are named."""


def close_objects(schema: Any) -> Any:
    """The schema with closed objects, where that leaves any answer."""
    try:
        return _Closer(schema).root()
    except RecursionError:
        return schema


class _Closer:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._copies: dict[int, str] = {}
        """By the identity of what they are copies of, which many pointers may point to."""
        self._more: dict[str, Any] = {}
        """Definitions that stay open, for objects that are joined with them."""
        self._left = _MOST_NAMES

    def root(self) -> Any:
        found = self._close(self._root)
        if not self._more:
            return found
        return found | {"$defs": {**found.get("$defs", {}), **self._more}}

    def _close(self, schema: Any) -> Any:
        """Close a schema that no other is joined with."""
        if not isinstance(schema, Mapping):
            return schema
        if schema.get("unevaluatedProperties") is False:
            rest = {key: one for key, one in schema.items() if key != "unevaluatedProperties"}
            found = self._close(rest)  # which says the same, if all names are known
            return found if _is_closed(found) else {**found, "unevaluatedProperties": False}
        if _constraints(schema) > 1:
            return self._close_joined(schema)
        found = map_subschemas(schema, self._close, self._close)
        return self._with_names(found, schema) if "properties" in schema else found

    def _open(self, schema: Any) -> Any:
        """A schema that another is joined with."""
        if not isinstance(schema, Mapping):
            return schema
        found = map_subschemas(schema, self._close, self._open)
        if "$ref" in schema:
            found["$ref"] = self._copy(schema["$ref"])
        return found

    def _close_joined(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """An object of several schemas: of choices, each is closed with the names of the rest."""
        found: dict[str, Any] = self._open(schema)
        choices = [key for key in CHOICES if isinstance(schema.get(key), list)]
        if len(choices) != 1:
            return self._with_names(found, schema)
        (key,) = choices
        rest = {name: value for name, value in schema.items() if name != key}
        found[key] = [
            self._with_names(inner, rest, one) if isinstance(inner, Mapping) else inner
            for inner, one in zip(found[key], schema[key], strict=True)
        ]
        return found

    def _with_names(self, found: Mapping[str, Any], *schemas: Any) -> Mapping[str, Any]:
        """The schema closed with the names of these, if it is open and they mean no more."""
        if "additionalProperties" in found:
            return found
        try:
            names, required = self._names(schemas)
        except _OpenError:
            return found
        own = found.get("properties", {} if names else None)
        if not required <= names.keys() or not isinstance(own, Mapping):
            return found
        properties = {**own, **{name: True for name in names if name not in own}}
        return {**found, "properties": properties, "additionalProperties": False}

    def _names(self, schemas: Any) -> tuple[dict[str, None], set[str]]:
        """The properties that schemas name, and those that they require. Raises _OpenError."""
        names, required, seen = dict[str, None](), set[str](), set[str]()
        waiting = list(reversed(schemas))
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping):
                continue
            properties, wanted = schema.get("properties", {}), schema.get("required", [])
            says = any(key in schema for key in _SAYS)
            if says or schema.get("additionalProperties", False) is not False:
                raise _OpenError
            if not isinstance(properties, Mapping) or not _is_texts(wanted):
                raise _OpenError
            self._left -= 1 + len(properties)
            if self._left < 0:
                raise _OpenError
            names |= dict.fromkeys(properties)
            required |= set(wanted)
            pointer = schema.get("$ref")
            if isinstance(pointer, str) and pointer not in seen:
                seen.add(pointer)
                waiting.append(self._target(pointer))
            for key in JOINS:
                waiting += reversed(value) if isinstance(value := schema.get(key), list) else []
        return names, required

    def _target(self, pointer: str) -> Any:
        """Raises _OpenError for a schema from elsewhere."""
        target = found_at(self._root, pointer)
        if target is FAR:
            raise _OpenError
        return target

    def _copy(self, pointer: Any) -> Any:
        """A reference to the same schema, open."""
        target = found_at(self._root, pointer)
        if not isinstance(target, Mapping):
            return pointer
        if id(target) not in self._copies:
            known = self._root.get("$defs", {})
            if not isinstance(known, Mapping):
                return pointer
            name = f"open{len(self._copies)}"
            while name in known:
                name += "_"
            self._copies[id(target)] = name
            inside = {key: value for key, value in target.items() if key not in DEFINITIONS}
            self._more[name] = self._open(inside)
        return f"#/$defs/{self._copies[id(target)]}"


def _constraints(schema: Mapping[str, Any]) -> int:
    """How many schemas an object must match at once, that may name properties."""
    every = schema.get("allOf")
    own = [isinstance(schema.get("properties"), Mapping), isinstance(schema.get("$ref"), str)]
    choices = [isinstance(schema.get(key), list) for key in CHOICES]
    return sum(own) + sum(choices) + (len(every) if isinstance(every, list) else 0)


def _is_closed(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    choices = (one for key in CHOICES if isinstance(one := schema.get(key), list))
    closed_choices = any(all(map(_is_closed, each)) for each in choices)
    return schema.get("additionalProperties") is False or closed_choices


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_LENGTHS = "minLength", "maxLength"

_COUNTS = *_LENGTHS, "minItems", "maxItems", "minProperties", "maxProperties"

_ANY_NAME: tuple[Any, ...] = ({"type": "string"}, {}, True)
"""Of `propertyNames`: what clients say of records."""

_BOUNDS = "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"

_ASIDE = "const", "default", "enum", "example", "examples"
"""Of values, which may look like schemas. A reference may point into any other keyword."""

_MOST_OPTIONAL = 498
"""Properties in a row that may be left out. llguidance has four items of 2,000 for each."""

_TINY, _HUGE, _MOST = 1e-75, 10**18 - 64, 2**63 - 512
"""Beyond these, as doubles, the expressions of ranges can't be made."""

_PLAIN = re.compile(r"\\(?:[afnrtvAzdDsSwWpPxuU]|[^A-Za-z0-9<>\x80-\U0010ffff])")
"""The escapes that Rust's regular expressions know. Assertions and back-references are others."""

_FOREIGN = re.compile(r"\\|\(\?(?:[#>=!(]|<[=!]|P[=>])")

_HEAD = re.compile(r"\^([\w-]+\$?)(?![*?{])[^|]*")
"""An expression with the text that all it matches begins with."""


def acceptable(schema: Any, lenient: bool) -> Any:
    """The schema with counts such as 1.0 as integers, without names that may be any.

    lenient: without what would be refused. llguidance holds numbers as doubles: bounds between two
    of them go inwards. Raises UserError for values between them, where it would write another.

    What llguidance ignores in lenient schemas by itself, such as `not`, stays.
    """
    try:
        return _acceptable(schema, lenient)
    except RecursionError:
        return schema


def _acceptable(schema: Any, lenient: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    again = partial(_acceptable, lenient=lenient)
    inner = map_subschemas(schema, again, again)
    others = inner.keys() - {*_OF_SCHEMAS, *JOINS, *_ONE_OR_SEVERAL, *_ASIDE}
    inner |= {key: again(inner[key]) for key in others}
    for key in _COUNTS:
        if isinstance(count := inner.get(key), float) and count.is_integer():
            inner[key] = int(count)
    _exclude(inner)
    _count_names(inner, lenient)
    if inner.get("propertyNames") in _ANY_NAME:
        del inner["propertyNames"]
    inner |= {key: _inwards(inner, key) for key in _BOUNDS if key in inner}
    inner = {key: one for key, one in inner.items() if not _excludes_nothing(inner, key)}
    inexact = [key for key in ("const", "enum") if not _is_exact(inner.get(key))]
    if inexact and not lenient:
        why = f"a schema's {inexact[0]} has an integer that is held as a double, and differs then"
        raise UserError(why, "give it as a text, or without `strict`")
    dropped = {*inexact, *_refused_keys(inner)} if lenient else ()
    return {key: value for key, value in inner.items() if key not in dropped}


def _exclude(schema: dict[str, Any]) -> None:
    """Say bounds of OpenAPI 3.0 in today's words, where true excludes the bound beside it."""
    for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(key), bool) and schema.pop(key) and bound in schema:
            schema[key] = schema.pop(bound)


def _count_names(schema: dict[str, Any], lenient: bool) -> None:
    """Leave `minProperties` only where counting names that are written counts those that are read.

    Names that a schema leaves open may repeat, and by escapes also one that it names. Raises
    UserError for too many properties, and if not lenient for a bound that may be missed.
    """
    own, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(own, Mapping) or not _is_texts(required):
        return
    runs = groupby(own, {*required}.__contains__)
    if (most := max((len([*run]) for known, run in runs if not known), default=0)) > _MOST_OPTIONAL:
        why = f"{most:,} properties in a row may be left out, and {_MOST_OPTIONAL} can be"
        raise UserError(f"structured_outputs can't be compiled: {why}", "require some of them")
    least, known = _number(schema, "minProperties"), {*required}
    is_closed = schema.get("additionalProperties") is False
    is_beyond = least > len(known) + (is_closed or not known)
    others = lenient and own.keys() - known  # llguidance would count only those
    if others:
        schema.pop("maxProperties", None)
    if others or 0 < least <= len(known) or (lenient and is_closed and is_beyond):
        schema.pop("minProperties", None)
    elif is_beyond and not lenient:
        why = f"minProperties {least} counts names that may repeat, as they are not required"
        hint = "name them in `required`, or leave out `strict`"
        raise UserError(f"structured_outputs can't be compiled: {why}", hint)


def _refused_keys(schema: Mapping[str, Any]) -> Iterator[str]:
    """Keywords that llguidance refuses for their values."""
    if isinstance(pattern := schema.get("pattern"), str) and _is_foreign(pattern):
        yield "pattern"
    yield from (key for key in _LENGTHS if abs(_number(schema, key)) >= 1 << 32)
    yield from (key for key in _BOUNDS if _is_far(schema, key))
    patterns = schema.get("patternProperties")
    if isinstance(patterns, Mapping) and not _are_disjoint(list(patterns)):
        yield from ("patternProperties", "additionalProperties")  # which is of the other names


def _is_foreign(pattern: str) -> bool:
    return bool(_FOREIGN.search(_PLAIN.sub(".", pattern)))


def _is_far(schema: Mapping[str, Any], key: str) -> bool:
    """Whether a bound is one of a range that llguidance can't express."""
    bound, is_maximum = _number(schema, key), "aximum" in key
    if is_maximum and bound > 0 and "number" not in str(schema.get("type", "number")):
        return False
    far = _MOST if is_maximum == (bound > 0) else _HUGE
    return 0 < abs(bound) < _TINY or abs(bound) >= far


def _is_exact(value: Any) -> bool:
    """Whether llguidance writes the integers of a value as they are."""
    if isinstance(value, Mapping | list):
        return all(map(_is_exact, value.values() if isinstance(value, Mapping) else value))
    if not isinstance(value, int) or abs(value) > sys.float_info.max:
        return not isinstance(value, int)
    double = float(value)
    return (int(double) if abs(value) < _MOST else Decimal(repr(double))) == value


def _excludes_nothing(schema: Mapping[str, Any], key: str) -> bool:
    """Whether a bound is one that every double is within."""
    bound, way = _number(schema, key), 1 if "aximum" in key else -1
    return key in _BOUNDS and way * bound > sys.float_info.max


def _inwards(schema: Mapping[str, Any], key: str) -> Any:
    """A bound, or the next double within its range where it is between two."""
    bound, way = schema[key], -1 if "aximum" in key else 1
    if not isinstance(bound, int) or abs(bound) >= _MOST:
        return bound
    near = float(bound)
    return int(near if way * (int(near) - bound) >= 0 else math.nextafter(near, way * math.inf))


def _number(schema: Mapping[str, Any], key: str) -> float:
    return value if isinstance(value := schema.get(key), int | float) else 0


def _are_disjoint(patterns: list[str]) -> bool:
    """Whether no name may match two expressions, as far as their first letters say."""
    if any(map(_is_foreign, patterns)):
        return False
    found = sorted(match[1] if (match := _HEAD.fullmatch(one)) else "" for one in patterns)
    return not any(b.startswith(a) for a, b in pairwise(found))
