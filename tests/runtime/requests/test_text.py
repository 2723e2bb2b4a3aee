"""Streaming text is the tokenizer's own decoding, whole characters at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from snapexport.runtime.requests.text import Detokenizer, NoText, StopStrings, TextStream
from tests.runtime.tokenizers_for_tests import byte_fallback, byte_level, words

BYTE_LEVEL, BYTE_FALLBACK, WORDS = byte_level(), byte_fallback(), words()
REPLACEMENT = "\ufffd"

# Tokenizers of SentencePiece's kind write a space as "▁", and give back both as a space.
texts = st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT + "▁"), max_size=30)


def deltas(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@pytest.mark.parametrize(
    "tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"]
)
@given(text=texts | st.just("né 漢字 🙂👩‍👩‍👧 fin"))
def test_text_never_ends_within_a_character(tokenizer: Tokenizer, text: str) -> None:
    parts = deltas(tokenizer, tokenizer.encode(text).ids)
    assert "".join(parts) == text
    assert not any(REPLACEMENT in part for part in parts)


@given(st.lists(st.integers(0, 256), max_size=20))
def test_texts_join_to_the_decoding_of_any_bytes(ids: list[int]) -> None:
    assert "".join(deltas(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)


@given(st.lists(st.integers(0, 4), max_size=20))
def test_texts_join_to_the_decoding_of_any_words(ids: list[int]) -> None:
    assert "".join(deltas(WORDS, ids)) == WORDS.decode(ids)


@given(st.lists(st.integers(0, BYTE_FALLBACK.get_vocab_size() - 1), max_size=20))
def test_invalid_utf8_bytes_raise_nothing(ids: list[int]) -> None:
    deltas(BYTE_FALLBACK, ids)


def test_a_character_comes_with_its_last_byte() -> None:
    ids = BYTE_LEVEL.encode("a🙂").ids
    assert deltas(BYTE_LEVEL, ids) == ["a", "", "", "", "🙂", ""]
    assert deltas(BYTE_LEVEL, ids[:-1])[-1] == REPLACEMENT


def test_special_tokens_are_not_text() -> None:
    assert "".join(deltas(BYTE_LEVEL, [*BYTE_LEVEL.encode("a").ids, 256])) == "a"


def first_stop(text: str, stops: list[str], least: int = -1) -> str:
    """The definition: the text before the stop string that ends first, the longest of those.

    least: characters that it ends after.
    """
    for end in range(least + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - len(max(ending, key=len))]
    return text


@given(
    st.lists(st.text("ab", min_size=0, max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_do_not_depend_on_the_split(pieces: list[str], stops: list[str]) -> None:
    stream, out = StopStrings(stops), ""
    for piece in pieces:
        out += stream.push(piece)
        if stream.found:
            break
    out += stream.finish()
    whole = "".join(pieces)
    assert out == first_stop(whole, stops)
    assert stream.found == any(stop in whole for stop in stops)


@given(
    st.lists(st.text("ab", min_size=0, max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.integers(0, 12),
)
def test_stop_strings_that_end_early_do_not_count(
    pieces: list[str], stops: list[str], free: int
) -> None:
    """Of the first `free` pieces; one that begins there and ends later does."""
    stream, out = StopStrings(stops), ""
    for index, piece in enumerate(pieces):
        out += stream.push(piece, may_stop=index >= free)
        if stream.found:
            break
    out += stream.finish()
    whole, least = "".join(pieces), len("".join(pieces[:free]))
    assert out == first_stop(whole, stops, least)


@given(st.text("abc", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_only_beginnings_of_stop_strings_are_held_back(text: str, stops: list[str]) -> None:
    stream, out, seen = StopStrings(stops), "", ""
    for letter in text:
        out, seen = out + stream.push(letter), seen + letter
        if stream.found:
            return
        held = seen[len(out) :]
        assert seen.startswith(out)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_may_straddle_tokens() -> None:
    stream = TextStream(WORDS, ("op he",))
    ids = WORDS.encode("here stop here there").ids
    assert [stream.push(token) for token in ids[:2]] == ["here", " st"]
    assert stream.push(ids[2]) == "" and stream.stopped
    assert stream.finish() == ""


def test_an_unfinished_stop_string_comes_out_at_the_end() -> None:
    stream = TextStream(WORDS, ("stop there",))
    ids = WORDS.encode("or stop").ids
    assert [stream.push(token) for token in ids] == ["or", " "]
    assert stream.finish() == "stop" and not stream.stopped


def test_a_stop_string_may_come_with_the_flush() -> None:
    stream = TextStream(BYTE_LEVEL, (REPLACEMENT,))
    ids = BYTE_LEVEL.encode("a🙂").ids[:-1]
    assert "".join(stream.push(token) for token in ids) + stream.finish() == "a"
    assert stream.stopped


def test_output_without_a_tokenizer_has_no_text() -> None:
    assert NoText().push(1) + NoText().finish() == "" and not NoText.stopped
