"""Counts the tokens that a chat template writes between a user's message and the answer.

They end every prompt of a chat, so that a short window of the vote would see little of the
question.
"""

import json
from collections.abc import Mapping

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.runtime.chat import template_files

_MESSAGE = "question"


def template_tail(texts: Mapping[str, bytes]) -> int:
    """Tokens of the tail; 0 without a template or tokenizer, or where no message can be rendered.

    texts: the checkpoint's, by file name, checked already.
    """
    config = json.loads(texts.get(template_files.CONFIG, b"{}"))
    file = texts.get(template_files.FILE)
    source = file.decode() if file is not None else template_files.named_template(config)
    if source is None or TOKENIZER not in texts:
        return 0
    rendered = _rendered(source, template_files.special_tokens(config))
    tail = rendered.rpartition(_MESSAGE)[2] if _MESSAGE in rendered else ""
    tokenizer = Tokenizer.from_str(texts[TOKENIZER].decode())
    return len(tokenizer.encode(tail, add_special_tokens=False).ids)


def _rendered(source: str, special: Mapping[str, str]) -> str:
    """A user's message and the beginning of an answer; nothing from a template that fails."""
    from snapexport.runtime.chat.chat_template import ChatTemplate
    from snapexport.runtime.chat.template_process import TemplateProcesses

    try:
        processes = TemplateProcesses(ChatTemplate(source, special))
    except UserError:
        return ""
    try:
        return processes.render([{"role": "user", "content": _MESSAGE}], True)
    except UserError:
        return ""
    finally:
        processes.close()
