"""Text to token ids as the harness asks for them: one beginning-of-sequence token, never two.

Reads tokenizer.json through the runtime's tokenizer, and the names of the special tokens from
tokenizer_config.json. Knows no model.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.contract.errors import UserError

CONFIG = "tokenizer_config.json"


def read_config(directory: Path) -> dict[str, Any]:
    """The build's tokenizer_config.json; empty where there is none. Raises UserError."""
    path = directory / CONFIG
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", "copy it from the checkpoint") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} does not hold a JSON object", "copy it from the checkpoint")
    return config


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of `bos_token` and its kind: each is a text, or an object with `content`."""
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {key: _content(value) for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _content(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


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
