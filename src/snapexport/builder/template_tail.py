"""Tries a checkpoint's chat templates: whether they can be read, and how long the tail is.

The tail is what a template writes between a user's message and the answer. It ends every prompt of
a chat, so that a short window of the vote would see little of the question.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.exporter.read.folders import GGUF
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.runtime.chat import template_files

_MESSAGE = "question"
_IN_A_FOLDER = "correct it, or move it out of the checkpoint to build without a chat template"
_IN_GGUF = "write a corrected one into a copy: `gguf-new-metadata --chat-template-file FILE IN OUT`"

Texts = Mapping[str, bytes]


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
            found = _rendered(template, special)
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


def _rendered(source: str, special: Mapping[str, str]) -> str:
    """A user's message and the beginning of an answer; nothing if the template refuses that.

    Raises UserError for a text that is no template.
    """
    from snapexport.runtime.chat.chat_template import ChatTemplate
    from snapexport.runtime.chat.template_process import TemplateProcesses

    with closing(TemplateProcesses(ChatTemplate(source, special))) as processes:
        try:
            return processes.render([{"role": "user", "content": _MESSAGE}], True)
        except UserError:
            return ""
