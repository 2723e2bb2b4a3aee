"""Makes a tokenizer.json with all tokens that transformers sees, of a checkpoint's own files.

A tokenizer in another format, such as Mistral's tekken.json or SentencePiece's tokenizer.model, is
converted by transformers. Special and added tokens are in tokenizer_config.json,
special_tokens_map.json, added_tokens.json, or are a class's defaults: afterwards tokenizer.json and
tokenizer_config.json have them all. Runs no foreign code, and reads no weight.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, Tokenizer

from snapexport.errors import UserError
from snapexport.exporter.quiet import quiet
from snapexport.exporter.read.folders import (
    CHAT_TEMPLATE,
    CONFIG,
    CONVERTIBLE,
    MORE_TEMPLATES,
    READ,
    TOKENIZER_CONFIG,
)
from snapexport.files.tokenizer_file import TOKENIZER, parse_tokenizer, tokenizer_errors
from snapexport.files.untrusted import TOKENIZER_BYTES, open_regular, read_bytes

_NEEDS = {
    "tekken.json": "mistral-common",
    "tiktoken": "tiktoken",
    "model": "sentencepiece protobuf",
}
"""Packages that transformers converts with, by the end of a file's name."""
_FAILED = "no tokenizer"
_LEAST = 64
"""Tokens. transformers makes an empty tokenizer where it doesn't find its class's files."""


def convert_tokenizer(folder: Path, texts: Mapping[str, bytes]) -> bytes | None:
    """The tokenizer.json; None if the folder has no tokenizer in any format.

    texts: the folder's small files, by name. Raises UserError with the command that converts.
    """
    sources = [name for name in CONVERTIBLE if (folder / name).is_file()]
    if not sources:
        return None
    try:
        with tokenizer_errors(_FAILED):  # whatever transformers' converters raise
            return _by_transformers(folder, sources, texts)
    except UserError as error:
        needed = [one for end, one in _NEEDS.items() if sources[0].endswith(end)]
        install = f"`pip install {needed[0]}`, and " if needed else ""
        raise UserError(
            f"{folder} has {sources[0]} and no {TOKENIZER}, and transformers cannot convert it: "
            f"{error.message.removeprefix(f'{_FAILED}: ')!s:.200}",
            f"{install}write it with transformers: AutoTokenizer.from_pretrained(FOLDER)"
            f".save_pretrained(FOLDER); or take {TOKENIZER} from the same model elsewhere; or move "
            f"{sources[0]} away to build without a tokenizer",
        ) from None


def _by_transformers(folder: Path, sources: list[str], texts: Mapping[str, bytes]) -> bytes:
    from transformers import AutoTokenizer

    with TemporaryDirectory(prefix="snapexport-tokenizer-") as made:
        for name, content in texts.items():
            if "/" not in name:
                (Path(made) / name).write_bytes(content)
        for name in sources:
            _copy(folder / name, Path(made) / name)
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                made, trust_remote_code=False, local_files_only=True
            )
        if tokenizer.backend_tokenizer.get_vocab_size() < _LEAST:
            raise ValueError("it makes an empty one")
        text: str = tokenizer.backend_tokenizer.to_str()
    return text.encode()


def _copy(source: Path, target: Path) -> None:
    with open_regular(source, "download it again") as file, target.open("xb") as out:
        if source.stat().st_size > TOKENIZER_BYTES:
            raise ValueError(f"{source.name} has more than {TOKENIZER_BYTES} bytes")
        shutil.copyfileobj(file, out)


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
    """transformers' tokenizer of only these files; None if it makes none of them."""
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
