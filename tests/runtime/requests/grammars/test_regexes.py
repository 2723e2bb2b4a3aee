r"""Regular expressions match what they match in ECMA-262: \d and \w are ASCII."""

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from snapexport.errors import UserError
from snapexport.runtime.requests.grammars import library
from tests.runtime.tokenizers_for_tests import byte_level

ENCODE = byte_level().encode
TOKENIZER = library.Vocabulary.of(byte_level()).open()


def takes(regex: str, text: str) -> bool:
    matcher = library.matcher_of(TOKENIZER, library.grammar_of("regex", regex, False))
    return all(map(matcher.consume_token, ENCODE(text).ids)) and matcher.is_accepting()


CHARACTERS = "a_-.\\/d5é٣"
ESCAPES = [rf"\{letter}" for letter in r"dDwW\/-]"]
CLASSES = st.tuples(
    st.sampled_from(["[", "[^"]),
    st.lists(st.sampled_from([*ESCAPES, "a", "5", ".", "é", "0-5"]), min_size=1, max_size=4),
)
PARTS = st.one_of(
    st.sampled_from([*ESCAPES, "a", "é", "/", ".", "[-.]"]),
    CLASSES.map(lambda parts: f"{parts[0]}{''.join(parts[1])}]"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3).map("".join), st.text(CHARACTERS, max_size=3))
@example(r"\d\\d", "5\\d")
@example(r"[\d.]{2}", "5.")
@example(r"\d", "٣")
def test_expressions_match_what_they_match_in_ascii(regex: str, text: str) -> None:
    try:
        taken = takes(regex, text)
    except UserError:
        assume(False)  # a negated class of everything matches nothing
    assert taken == bool(re.fullmatch(regex, text, re.ASCII))


@pytest.mark.parametrize("text", "+-5")
def test_a_hyphen_before_digits_makes_no_range(text: str) -> None:
    assert takes(r"[+-\d]", text) and not takes(r"[+-\d]", ".")


@pytest.mark.parametrize("regex", ["\\", "a\\\\\\"])
def test_an_expression_that_ends_in_a_backslash_is_refused(regex: str) -> None:
    with pytest.raises(UserError, match="compiled: the regex ends in a backslash"):
        library.grammar_of("regex", regex, False)
