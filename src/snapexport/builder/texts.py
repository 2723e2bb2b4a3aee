"""Reads a checkpoint's texts for a build, checked: configs, tokenizer and chat templates.

Tries the templates, too: whether they can be read, and how long the tail is. The tail is what a
template writes between a user's message and the answer. It ends every prompt of a chat, so a short
window of the vote would see little of the question.
"""

import codecs
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.exporter.read.folders import (
    CHAT_TEMPLATE,
    COPIED,
    GGUF,
    PROCESSORS_TEMPLATE,
    READ,
    TOKENIZER_CONFIG,
)
from snapexport.exporter.read.tokenizer import convert_tokenizer, with_special_tokens
from snapexport.files.tokenizer_file import TOKENIZER, parse_tokenizer
from snapexport.files.untrusted import decode_utf8, parse_object, read_bytes
from snapexport.runtime.chat import template_files

_HINT = "download the checkpoint again: the file is damaged"
_MESSAGE = "question"
_IN_A_FOLDER = "correct it, or move it out of the checkpoint to build without a chat template"
_IN_GGUF = "write a corrected one into a copy: `gguf-new-metadata --chat-template-file FILE IN OUT`"

Texts = Mapping[str, bytes]
"""Contents of files, by name."""


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
    text = decode_utf8(content, path, _HINT)
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


def template_tail(texts: Texts, source: Path | None = None) -> int:
    """Tokens of the tail; 0 without a template or tokenizer, or where no message can be rendered.

    texts: the checkpoint's, by file name, checked already. source: what the user named. Raises
    UserError, with the line, for a template that nobody can read.
    """
    config = json.loads(texts.get(template_files.CONFIG, b"{}"))
    special = template_files.special_tokens(config)
    rendered = ""
    for name, template in _templates(texts, config).items():
        with _words_of(name, source):
            found = _render(template, special)
        rendered = found if name == template_files.DEFAULT else rendered
    if _MESSAGE not in rendered or TOKENIZER not in texts:
        return 0
    tail, tokenizer = rendered.rpartition(_MESSAGE)[2], Tokenizer.from_str(_text(texts, TOKENIZER))
    return len(tokenizer.encode(tail, add_special_tokens=False).ids)


def _templates(texts: Texts, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates that a build's runtime takes, by their names in transformers."""
    files = {
        template_files.DEFAULT: template_files.FILE,
        template_files.TOOL_USE: template_files.TOOL_USE_FILE,
    }
    in_files = {name: _text(texts, file) for name, file in files.items() if file in texts}
    if template_files.DEFAULT in in_files:
        return in_files
    named = {name: template_files.named_template(config, name) for name in files}
    return {name: source for name, source in named.items() if source is not None} | in_files


def _text(texts: Texts, name: str) -> str:
    return texts[name].decode()


@contextmanager
def _words_of(name: str, source: Path | None) -> Iterator[None]:
    """Name the template, and what to do about it, in errors."""
    try:
        yield
    except UserError as error:
        hint = _IN_GGUF if source and source.suffix == GGUF else _IN_A_FOLDER
        of = f"{source}: " if source else ""
        which = "" if name == template_files.DEFAULT else f" ({name})"
        raise UserError(f"{of}{error.message}{which}", hint) from None


def _render(source: str, special: Mapping[str, str]) -> str:
    """A user's message and the beginning of an answer; nothing if the template refuses that.

    Raises UserError for a text that is not a template.
    """
    from snapexport.runtime.chat.chat_template import ChatTemplate
    from snapexport.runtime.chat.template_process import TemplateProcesses

    with closing(TemplateProcesses(ChatTemplate(source, special))) as processes:
        try:
            return processes.render([{"role": "user", "content": _MESSAGE}], True)
        except UserError:
            return ""
