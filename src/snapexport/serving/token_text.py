"""The text and the bytes of a single token, for log probabilities.

A token may be a part of a character. Its text is then a replacement character, and its bytes are
those that the vocabulary spells: by a letter for each byte (GPT-2, Llama 3, Qwen), or as `<0xE2>`
(SentencePiece).
"""

import re
from functools import cached_property, lru_cache

from tokenizers import Tokenizer, pre_tokenizers

LEAST = -9999.0
"""OpenAI's value for the log probability of a token that is impossible."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")

MOST_KEPT = 1 << 14
"""Tokens whose text is kept."""


class TokenText:
    """Texts of a tokenizer's tokens; without a tokenizer they are empty."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._text = lru_cache(maxsize=MOST_KEPT)(self._decode)

    def __call__(self, token: int) -> str:
        """The token's text."""
        return self._text(token)

    def data(self, token: int) -> bytes:
        """The token's bytes. Those of an answer join to its text."""
        text = self._text(token)
        if self._tokenizer is None or REPLACEMENT not in text:
            return text.encode()
        name = self._tokenizer.id_to_token(token) or ""
        if byte := _FALLBACK.fullmatch(name):
            return bytes.fromhex(byte[1])
        letters = self._bytes_of_letters
        return (
            bytes(map(letters.__getitem__, name)) if letters.keys() >= set(name) else text.encode()
        )

    def is_part(self, token: int) -> bool:
        """Whether the token's bytes are no text by themselves."""
        return self.data(token) != self._text(token).encode()

    def _decode(self, token: int) -> str:
        """The token is decoded after another one: some decoders drop a first leading space."""
        if self._tokenizer is None:
            return ""
        once = self._tokenizer.decode([token], skip_special_tokens=False)
        twice = self._tokenizer.decode([token, token], skip_special_tokens=False)
        return str(twice.removeprefix(once))

    @cached_property
    def _bytes_of_letters(self) -> dict[str, int]:
        """Latin-1's printable letters stand for themselves, those above for other bytes."""
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        own = {letter: ord(letter) for letter in letters if ord(letter) < 256}
        others = sorted(set(range(256)) - set(own.values()))
        above = [letter for letter in letters if ord(letter) >= 256]
        return own | dict(zip(above, others, strict=True))
