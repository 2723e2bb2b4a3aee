"""Reads a checkpoint's texts for a build, checked: configs, tokenizer and chat template."""

import codecs
import json
import os
from pathlib import Path

from snapexport.exporter.read.folders import (
    CHAT_TEMPLATE,
    COPIED,
    PROCESSORS_TEMPLATE,
    READ,
    TOKENIZER_CONFIG,
)
from snapexport.exporter.read.tokenizer import convert_tokenizer, with_special_tokens
from snapexport.files.tokenizer_file import TOKENIZER, parse_tokenizer
from snapexport.files.untrusted import decoded, parse_object, read_bytes
from snapexport.runtime.chat import template_files

_HINT = "download the checkpoint again: the file is damaged"


def read_texts(
    checkpoint: Path, vocab_size: int | None = None, *, is_whole: bool = False
) -> dict[str, bytes]:
    """The texts that a build of a checkpoint has, by name. Raises UserError for an unsound one.

    Special tokens and templates from other files are in those that are copied. vocab_size: of the
    model; None: not known. is_whole: there are none in other files, nor in transformers' classes.
    """
    found = {}
    for name, most in READ.items():
        path = checkpoint / name
        if os.path.lexists(path):
            found[name] = read_bytes(path, most, _HINT).removeprefix(codecs.BOM_UTF8)
            _require_sound(path, found[name])
    if TOKENIZER not in found and (made := convert_tokenizer(checkpoint, found)):
        found[TOKENIZER] = made
    found = _with_processors_template(found)
    found = found if is_whole else with_special_tokens(found, vocab_size)
    return {name: text for name, text in found.items() if name in COPIED}


def _require_sound(path: Path, content: bytes) -> None:
    text = decoded(content, path, _HINT)
    if path.suffix == ".json":
        parse_object(content, path, _HINT, lenient=True)
    if path.name == TOKENIZER:
        parse_tokenizer(text, path)


def _with_processors_template(texts: dict[str, bytes]) -> dict[str, bytes]:
    """The chat template of a processor of images, if the tokenizer has none."""
    config = json.loads(texts.get(TOKENIZER_CONFIG, b"{}"))
    is_known = CHAT_TEMPLATE in texts or template_files.named_template(config) is not None
    if is_known or PROCESSORS_TEMPLATE not in texts:
        return texts
    source = template_files.named_template(json.loads(texts[PROCESSORS_TEMPLATE]))
    return texts if source is None else texts | {CHAT_TEMPLATE: source.encode()}
