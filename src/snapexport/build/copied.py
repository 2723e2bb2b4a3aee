"""Copies a checkpoint's texts into a build, checked: configs, tokenizer and chat template."""

import os
from pathlib import Path

from snapexport.files.tokenizer_file import TOKENIZER, parse_tokenizer
from snapexport.files.untrusted import (
    CONFIG_BYTES,
    TEMPLATE_BYTES,
    TOKENIZER_BYTES,
    decoded,
    parse_object,
    read_bytes,
)

_COPIED = {
    "config.json": CONFIG_BYTES,
    "tokenizer.json": TOKENIZER_BYTES,
    "tokenizer_config.json": CONFIG_BYTES,
    "chat_template.jinja": TEMPLATE_BYTES,
    "additional_chat_templates/tool_use.jinja": TEMPLATE_BYTES,
    "generation_config.json": CONFIG_BYTES,
}
"""The most bytes of each."""
_HINT = "download the checkpoint again: the file is damaged"


def read_texts(checkpoint: Path) -> dict[str, bytes]:
    """The texts that a checkpoint has, by name. Raises UserError for one that is not sound."""
    found = {}
    for name, most in _COPIED.items():
        path = checkpoint / name
        if os.path.lexists(path):
            found[name] = read_bytes(path, most, _HINT)
            _require_sound(path, found[name])
    return found


def _require_sound(path: Path, content: bytes) -> None:
    text = decoded(content, path, _HINT)
    if path.suffix == ".json":
        parse_object(content, path, _HINT)
    if path.name == TOKENIZER:
        parse_tokenizer(text, path)
