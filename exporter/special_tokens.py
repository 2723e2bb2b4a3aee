"""Gives a checkpoint's texts the special and added tokens that transformers sees in them.

They lie in tokenizer_config.json, special_tokens_map.json, added_tokens.json, or are a class's
defaults. Afterwards tokenizer.json and tokenizer_config.json have them all. No weight is read.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, Tokenizer

from snapexport.errors import UserError
from snapexport.exporter.quiet import quiet
from snapexport.exporter.text_files import (
    CHAT_TEMPLATE,
    CONFIG,
    MORE_TEMPLATES,
    READ,
    TOKENIZER_CONFIG,
)
from snapexport.files.tokenizer_file import TOKENIZER, parse_tokenizer, tokenizer_errors
from snapexport.files.untrusted import read_bytes

Texts = Mapping[str, bytes]


def with_special_tokens(texts: Texts, vocab_size: int | None) -> dict[str, bytes]:
    """The texts, changed where transformers sees other tokens. Runs no foreign code.

    vocab_size: of the model, which has no token beyond; None: not known.
    """
    changed = dict(texts)
    seen = read_tokenizer(texts) if TOKENIZER in texts else None
    if seen is None:
        return changed
    config: dict[str, Any] = json.loads(texts.get(TOKENIZER_CONFIG, b"{}"))
    named = {name: text for name, text in seen.special_tokens_map.items() if name.isidentifier()}
    if any(_text(config.get(name)) != text for name, text in named.items()):
        changed[TOKENIZER_CONFIG] = json.dumps(config | named, ensure_ascii=False).encode()
    tokenizer = parse_tokenizer(texts[TOKENIZER].decode(), Path(TOKENIZER))
    if _add(tokenizer, seen.added_tokens_decoder, vocab_size):
        changed[TOKENIZER] = tokenizer.to_str().encode()
    return changed


def read_tokenizer(texts: Texts) -> Any:
    """transformers' tokenizer of these files alone; None if it makes none of them."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    with TemporaryDirectory(prefix="snapexport-tokenizer-") as name:
        for file, content in texts.items():
            if file != CHAT_TEMPLATE and not file.startswith(MORE_TEMPLATES):
                (Path(name) / file).write_bytes(content)
        for kind in (AutoTokenizer, PreTrainedTokenizerFast):
            if kind is AutoTokenizer and CONFIG not in texts:
                continue
            # transformers raises whatever a class of its does, and panics of Rust's.
            with suppress(UserError), tokenizer_errors(TOKENIZER), quiet():
                return kind.from_pretrained(name, trust_remote_code=False, local_files_only=True)
    return None


def end_of_text(directory: Path, vocab_size: int) -> int | None:
    """The tokenizer's own end token, for a model whose configs have none."""
    texts = {}
    for name, most in READ.items():
        with suppress(UserError, OSError):
            texts[name] = read_bytes(directory / name, most, "")
    seen = read_tokenizer(texts) if TOKENIZER in texts else None
    token = seen.eos_token_id if seen is not None and seen.eos_token else None
    return token if type(token) is int and token < vocab_size else None


def _text(value: object) -> object:
    return value.get("content") if isinstance(value, dict) else value


def _add(tokenizer: Tokenizer, seen: Mapping[int, AddedToken], vocab_size: int | None) -> bool:
    """Add tokens that the tokenizer would cut into pieces; whether there were any."""
    own = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    added = False
    for number, token in sorted(seen.items()):
        found = tokenizer.token_to_id(token.content)
        place = tokenizer.get_vocab_size(True) if found is None else found
        if token.content in own or place != number or number >= (vocab_size or number + 1):
            continue
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        added = True
    return added
