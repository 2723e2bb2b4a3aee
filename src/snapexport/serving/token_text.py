"""The text of a single token, for log probabilities."""

from collections.abc import Callable
from functools import lru_cache

from tokenizers import Tokenizer

TokenText = Callable[[int], str]


def token_texts(tokenizer: Tokenizer | None) -> TokenText:
    """A function from a token id to the token's text; without a tokenizer, to an empty text.

    A token is decoded after another one, since some decoders drop a first token's leading space.
    """

    @lru_cache(maxsize=1 << 14)
    def text_of(token: int) -> str:
        if tokenizer is None:
            return ""
        once = tokenizer.decode([token], skip_special_tokens=False)
        twice = tokenizer.decode([token, token], skip_special_tokens=False)
        return str(twice.removeprefix(once))

    return text_of
