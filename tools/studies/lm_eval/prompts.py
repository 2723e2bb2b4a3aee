"""Turns the harness's texts into token ids, with one BOS token and never two.

Takes the runtime's tokenizer and tokenizer_config.json. Knows no model.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.runtime.chat.template_files import CONFIG, special_tokens


class Encoder:
    """A tokenizer, with the tokens that begin and end a text."""

    def __init__(
        self, tokenizer: Tokenizer, config: Mapping[str, Any], eos_token_id: Iterable[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = special_tokens(config)
        self._added = _first_added(tokenizer)
        self._eos = sorted(eos_token_id)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of a text. None: with the tokenizer's BOS, unless the text begins with it.

        A chat template writes the BOS into the text, and the tokenizer would add another one.
        """
        special = add_special_tokens is not False
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        doubled = self._added is not None and ids[:2] == [self._added, self._added]
        return ids[1:] if doubled and add_special_tokens is None else ids

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens without the special ones."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    @property
    def eot(self) -> int:
        """The token that ends a text."""
        named = self._id_of("eos_token")
        if named is None and not self._eos:
            raise UserError(
                "the build names no end-of-sequence token", f"add eos_token to its {CONFIG}"
            )
        return self._eos[0] if named is None else named

    @property
    def prefix(self) -> int:
        """The token before a text without context: BOS, or else end-of-sequence."""
        bos = self._id_of("bos_token") if self._added is None else self._added
        return self.eot if bos is None else bos

    def _id_of(self, name: str) -> int | None:
        text = self._texts.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)


def _first_added(tokenizer: Tokenizer) -> int | None:
    """The special token that the tokenizer adds before any text."""
    empty = tokenizer.encode("")
    marked = zip(empty.ids, empty.special_tokens_mask, strict=True)
    return next((token for token, is_special in marked if is_special), None)
