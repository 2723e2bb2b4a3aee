"""Puts a JSON schema into what llguidance takes: of a lenient one it drops what is refused."""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.requests.grammars.schemas import map_subschemas

_LENGTHS = "minLength", "maxLength"

_COUNTS = *_LENGTHS, "minItems", "maxItems", "minProperties", "maxProperties"

_ANY_NAME: tuple[Any, ...] = ({"type": "string"}, {}, True)
"""Of `propertyNames`: what clients say of records."""

_BOUNDS = "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"

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
    for key in _COUNTS:
        if isinstance(count := inner.get(key), float) and count.is_integer():
            inner[key] = int(count)
    if inner.get("propertyNames") in _ANY_NAME:
        del inner["propertyNames"]
    inner |= {key: _inwards(inner, key) for key in _BOUNDS if key in inner}
    inexact = [key for key in ("const", "enum") if not _is_exact(inner.get(key))]
    if inexact and not lenient:
        why = f"a schema's {inexact[0]} has an integer that is held as a double, and differs then"
        raise UserError(why, "give it as a text, or without `strict`")
    dropped = {*inexact, *_refused_keys(inner)} if lenient else ()
    return {key: value for key, value in inner.items() if key not in dropped}


def _refused_keys(schema: Mapping[str, Any]) -> Iterator[str]:
    """Keywords that llguidance refuses for their values."""
    if isinstance(pattern := schema.get("pattern"), str) and _is_foreign(pattern):
        yield "pattern"
    yield from (key for key in _LENGTHS if abs(_number(schema, key)) >= 1 << 32)
    yield from (key for key in _BOUNDS if _is_far(schema, key))
    patterns = schema.get("patternProperties")
    if isinstance(patterns, Mapping) and not _are_disjoint(list(patterns)):
        yield from ("patternProperties", "additionalProperties")  # which is of the other names
    required = schema.get("required")
    least = _number(schema, "minProperties") - (len(required) if isinstance(required, list) else 0)
    if least > 1 and schema.get("additionalProperties") is False:
        yield "minProperties"


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
