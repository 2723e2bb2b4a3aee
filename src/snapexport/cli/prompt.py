"""Reads the prompt of a command from its flags, a file or standard input.

If the build has a chat template, the prompt becomes a message of the user's.
"""

import argparse
import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from snapexport.cli.console import ERR
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError
from snapexport.runtime.chat.chat_prompts import require_template
from snapexport.runtime.chat.template_files import has_template
from snapexport.runtime.requests.prompts import Message, PromptTooLongError, TextTooLongError

MOST_BYTES = 1 << 26
"""Of a prompt's file: more than any build takes, and no more memory than that."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins as UTF-16's
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, as Windows writes them."""

SYSTEM = "the system message, before the conversation"
NOTE = "using the build's chat template; --no-chat gives the prompt as it is"


def add_arguments(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add --prompt TEXT and --prompt-file FILE, of which one may be given."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--prompt", metavar="TEXT", help="the prompt")
    group.add_argument("--prompt-file", metavar="FILE", help="a text file; - for standard input")


def add_chat(parser: argparse.ArgumentParser) -> None:
    """Add --chat, --no-chat and --system TEXT."""
    parser.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="send the prompt through the build's chat template (default: if it has one)",
    )
    parser.add_argument("--system", metavar="TEXT", help=SYSTEM)


def messages(arguments: argparse.Namespace, text: str) -> list[Message] | None:
    """The conversation of which the chat template makes a prompt; None: the text is the prompt.

    Raises UserError. Loads no model.
    """
    if arguments.chat:
        require_template(Build.open(arguments.build).directory)
    chats = arguments.chat is not False and has_template(arguments.build)
    given = {"system": arguments.system, "chat": arguments.chat, "has_template": chats}
    require_compatible(given)
    if not chats:
        return None
    if not text:
        raise UserError("a prompt is empty", "give it one token or more")
    return [*system_message(arguments.system), {"role": "user", "content": text}]


def note_template(arguments: argparse.Namespace) -> None:
    """Note on standard error that the prompt goes through the chat template, if no flag says so."""
    if arguments.chat is None:
        ERR.print(NOTE, soft_wrap=True)


@contextmanager
def template_errors() -> Iterator[None]:
    """Name --no-chat in the hints of errors about the chat template."""
    try:
        yield
    except (PromptTooLongError, TextTooLongError):
        raise
    except UserError as error:
        raise UserError(error.message, f"{error.hint}; or add --no-chat") from None


def system_message(text: str | None) -> list[Message]:
    """The beginning of a conversation: the system message, if there is one."""
    return [] if text is None else [{"role": "system", "content": text}]


def read(arguments: argparse.Namespace) -> str | None:
    """The text, or None where no flag was given. Raises UserError."""
    if arguments.prompt_file is None:
        return _valid(arguments.prompt)
    return _decode(_bytes(arguments.prompt_file))


def _decode(raw: bytes) -> str:
    """The text of a file, with line breaks as on Unix. A byte order mark says how it is encoded."""
    marked = [(mark, name) for mark, name in _MARKS if raw.startswith(mark)]
    mark, encoding = marked[0] if marked else (b"", "utf-8")
    try:
        return raw.removeprefix(mark).decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        place = f"{error.reason} at byte {len(mark) + error.start}"
        raise UserError(
            f"the prompt is not {encoding.upper()}: {place}",
            "convert it, for example with `iconv -t utf-8`",
        ) from None


def _bytes(name: str) -> bytes:
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}", "check --prompt-file") from None
    if len(raw) > MOST_BYTES:
        raise UserError(f"the prompt has more than {MOST_BYTES} bytes", "give a shorter text")
    return raw


def _valid(text: str | None) -> str | None:
    """The text. Raises UserError if it was not UTF-8, which Python reads as lone surrogates."""
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError("--prompt is not UTF-8", "write the prompt to a file as UTF-8")
    return text
