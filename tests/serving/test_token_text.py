"""Bytes of tokens join to the text that they spell."""

import pytest
from tokenizers import Tokenizer

from snapexport.runtime.requests.request import TokenLogprobs
from snapexport.serving.model import TokenText
from snapexport.serving.openai.writers.choices import CompletionLogprobs, chat_logprobs
from tests.runtime.tokenizers_for_tests import byte_fallback, byte_level, words

TEXT = "aé 漢😀b"


@pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback()], ids=["letters", "fallback"])
def test_bytes_of_an_answers_tokens_join_to_its_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    text_of = TokenText(tokenizer)
    assert b"".join(map(text_of.data, ids)) == TEXT.encode()
    logprobs = chat_logprobs([TokenLogprobs(token, -1.0, ()) for token in ids], text_of)
    data = bytes(byte for token in logprobs["content"] for byte in token["bytes"])
    assert data.decode() == TEXT
    assert any(text_of.is_part(token) for token in ids)


def test_every_byte_of_both_kinds_is_known() -> None:
    for tokenizer in (byte_level(), byte_fallback()):
        text_of = TokenText(tokenizer)
        spelt = {text_of.data(token) for token in range(tokenizer.get_vocab_size())}
        assert {bytes([byte]) for byte in range(128, 256)} <= spelt


def test_parts_of_characters_have_names_of_their_own_in_completions() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("é😀").ids
    rows = CompletionLogprobs(TokenText(tokenizer)).write(
        [TokenLogprobs(token, -1.0, ((ids[1], -2.0), (ids[2], -3.0))) for token in ids]
    )
    assert rows["tokens"][:2] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert rows["text_offset"] == [0, 0, 1, 1, 1, 1]
    assert len(rows["top_logprobs"][0]) == 3


def test_text_of_whole_tokens_is_as_it_was() -> None:
    text_of = TokenText(words())
    assert (text_of(1), text_of.data(1)) == (" stop", b" stop")
    assert TokenText(None)(5) == ""
