"""Numbers end, though a model would write digits for ever, and no useful number is lost."""

import json
from typing import Any

import numpy as np
import pytest

from snapexport.runtime.requests.grammars.grammar import MOST, Digits, Grammars, Place, Run
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from tests.runtime.tokenizers_for_tests import byte_fallback, byte_level

TOKENIZER = byte_level()
GRAMMARS = Grammars(TOKENIZER, 257)


def object_of(schema: dict[str, Any]) -> dict[str, Any]:
    fields = {"a": schema, "b": {"const": 1}}
    return {"type": "object", "properties": fields, "required": ["a", "b"]}


def place_of(schema: dict[str, Any]) -> Place:
    return GRAMMARS.compile(StructuredOutputs(json=schema)).begin()


def stubborn(place: Place, begin: str, digit: str) -> str:
    """What a model writes that wants this digit, and else what comes first; it never ends."""
    text, wanted = "", [*begin, *digit * 500]
    while not place.must_end and len(text) < 300:
        allowed = np.flatnonzero(place.bias() == 0)
        (first,) = TOKENIZER.encode(wanted[len(text)]).ids
        token = first if first in allowed else int(allowed[0])
        text += TOKENIZER.decode([token])
        place.take(token)
    return text


@pytest.mark.parametrize("digit", "09")
@pytest.mark.parametrize(
    ("schema", "begin"),
    [
        ({"type": "number"}, "-1."),
        ({"type": "number"}, "1e-"),
        ({"type": "number"}, "5"),
        ({"type": "number", "minimum": -1, "maximum": 1}, "0."),
        ({"type": "number", "exclusiveMinimum": 0}, "0."),
        ({"type": "number", "exclusiveMinimum": 0.25}, "0.25"),
        ({"type": "number", "exclusiveMaximum": 1}, "0."),
        ({"type": "number", "multipleOf": 0.5}, "1."),
        ({"type": "integer"}, "-1"),
        ({"type": "integer", "minimum": 0}, "1"),
        ({"type": "integer", "multipleOf": 7}, "1"),
        ({"type": ["integer", "null"]}, "1"),
        ({"type": "string", "format": "date-time"}, '"2026-01-01T00:00:00.'),
        ({"type": "string", "format": "duration"}, '"P1'),
    ],
)
def test_digits_end(schema: dict[str, Any], begin: str, digit: str) -> None:
    text = stubborn(place_of(schema), begin, digit)
    assert len(text) < 100
    json.loads(text)
    text = stubborn(place_of(object_of(schema)), f'{{"a":{begin}', digit)
    assert len(text) < 150
    assert json.loads(text)["b"] == 1


@pytest.mark.parametrize(
    "text",
    [
        *(str(value) for value in (-(2**63), 2**63 - 1, 2**64 - 1, 10**21)),
        *(repr(value) for value in (5e-324, 1.7976931348623157e308, -0.00012345678901234567)),
        "1.7976931348623157e+308",
        "0.0000012345678901234567",
    ],
)
def test_numbers_of_64_bits_are_allowed_as_they_are_written(text: str) -> None:
    place = place_of({"type": "number"})
    for token in TOKENIZER.encode(text).ids:
        assert place.bias()[token] == 0
        place.take(token)
    assert place.may_end


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, '"' + "0" * 60 + '"'),
        ({"type": "string", "pattern": "^[0-9]{60}$"}, '"' + "0" * 60 + '"'),
        ({"enum": [10**60]}, "1" + "0" * 60),
    ],
)
def test_what_has_more_digits_by_its_schema_keeps_them(schema: dict[str, Any], text: str) -> None:
    place = place_of(schema)
    for token in TOKENIZER.encode(text).ids:
        assert place.bias()[token] == 0
        place.take(token)
    assert place.may_end


def test_an_expression_keeps_its_digits() -> None:
    place = GRAMMARS.compile(StructuredOutputs(regex="[0-9]+x")).begin()
    assert len(stubborn(place, "", "0")) == 300


def test_tokens_of_several_digits_count_as_many() -> None:
    digits = Digits.of([b"0", b"000", b",0", b"a", b'"'])
    run = Run(digits, lambda token: False)
    for _ in range(7):
        run.take(1)
    mask = np.array([0b01111], np.uint8)
    assert run.bound_mask(mask, may_end=False) == [0b01111]
    run.take(0)
    assert MOST - 2 == 22 and run.bound_mask(mask, may_end=False) == [0b01101]
    run.take(2)
    assert run.bound_mask(mask, may_end=False) == [0b01111]


def test_bytes_that_are_tokens_count_too() -> None:
    grammars = Grammars(byte_fallback(), byte_fallback().get_vocab_size())
    place = grammars.compile(StructuredOutputs(json={"type": "integer"})).begin()
    zero = 1 + ord("1")
    for _ in range(MOST):
        assert place.bias()[zero] == 0
        place.take(zero)
    assert place.must_end
