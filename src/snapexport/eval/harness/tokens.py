"""Text to token ids as the harness asks for them: one beginning-of-sequence token, never two.

Takes the runtime's tokenizer, and the names of the special tokens from tokenizer_config.json. Knows
no model.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer

from snapexport.contract.errors import UserError
from snapexport.serving.chat_template import CONFIG, read_config, special_tokens

__all__ = ["Encoder", "read_config"]


class Encoder:
    """A tokenizer, and the tokens that a text may begin and end with."""

    def __init__(
        self, tokenizer: Tokenizer, config: Mapping[str, Any], eos_token_id: Iterable[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = special_tokens(config)
        self._added = _first_added(tokenizer)
        self._eos = sorted(eos_token_id)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of a text. None: with a BOS where the tokenizer adds it, unless there is one.

        A chat template writes the BOS into the text, and the tokenizer would add another.
        """
        special = add_special_tokens is not False
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        doubled = self._added is not None and ids[:2] == [self._added, self._added]
        return ids[1:] if doubled and add_special_tokens is None else ids

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens, the special ones left out."""
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
        """What stands before a text without a context: BOS, or else the end of the one before."""
        bos = self._id_of("bos_token") if self._added is None else self._added
        return self.eot if bos is None else bos

    def _id_of(self, name: str) -> int | None:
        text = self._texts.get(name)
        token: int | None = None if text is None else self._tokenizer.token_to_id(text)
        return token


def _first_added(tokenizer: Tokenizer) -> int | None:
    """The special token that the tokenizer puts before any text."""
    empty = tokenizer.encode("")
    marked = zip(empty.ids, empty.special_tokens_mask, strict=True)
    return next((token for token, is_special in marked if is_special), None)
