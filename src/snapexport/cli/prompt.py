"""Reads the prompt of a command from its arguments, a file or standard input.

If the build has a chat template, the prompt becomes a message of the user's.
"""

import argparse
import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapexport.cli.console import say
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError, flag_of
from snapexport.runtime.chat.chat_prompts import Chat, ChatPrompts, require_template
from snapexport.runtime.chat.template_files import has_template
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.prompts import (
    Message,
    PromptTooLongError,
    TextTooLongError,
    encode,
    require_readable,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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


class _Once(argparse.Action):
    """Stores a prompt. Raises UserError for a second one."""

    def __call__(
        self, _: argparse.ArgumentParser, found: argparse.Namespace, value: Any, *__: Any
    ) -> None:
        if found.prompt is not None or found.prompt_file is not None:
            raise UserError(
                "two prompts were given", "give one: PROMPT, --prompt TEXT or --prompt-file FILE"
            )
        setattr(found, self.dest, value)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the prompt, of which one may be given, --chat, --no-chat and --system TEXT."""
    text = "the prompt, in quotes; the same as --prompt TEXT"
    bare = parser.add_argument("prompt", metavar="[PROMPT]", action=_Once, help=text)
    bare.required = False  # by nargs="?" it could not follow a flag
    parser.add_argument("--prompt", metavar="TEXT", action=_Once, help="the prompt")
    parser.add_argument(
        "--prompt-file", metavar="FILE", action=_Once, help="a text file; - for standard input"
    )
    add_chat(parser)


def add_chat(parser: argparse.ArgumentParser) -> None:
    """Add --chat, --no-chat and --system TEXT."""
    parser.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="send the prompt through the build's chat template (default: if it has one)",
    )
    parser.add_argument("--system", metavar="TEXT", help=SYSTEM)


@dataclass(frozen=True)
class Given:
    """The prompt's text. is_whole: with its special tokens, which the chat template wrote."""

    text: str
    is_whole: bool

    def tokens(self, tokenizer: "Tokenizer | None", limits: Limits) -> list[int]:
        """The text's token ids. Raises UserError."""
        require_readable(self.text, limits)
        return encode(self.text, tokenizer, not self.is_whole)


def find(arguments: argparse.Namespace, build: Build, *needy: str) -> Given | None:
    """The prompt as the model gets it, or None where none was given. Raises UserError.

    needy: further flags that are only for a prompt.
    """
    text = read(arguments)
    if text is None:
        for name in (*needy, "system", "chat"):
            if (value := getattr(arguments, name)) is not None:
                flag = "--no-chat" if value is False else flag_of(name)
                raise UserError(
                    f"{flag} is for a prompt, but none was given", "add --prompt-file FILE"
                )
        return None
    talk = messages(arguments, text)
    given = render(build, text, talk)
    if talk is not None:
        note_template(arguments)
    return given


def render(build: Build, text: str, talk: list[Message] | None) -> Given:
    """The prompt as the model gets it. talk: as `messages` makes it of the text.

    Raises UserError.
    """
    if talk is None:
        return Given(text, is_whole=False)
    with template_errors():
        return Given(ChatPrompts.open(build.directory).text(Chat(talk)), is_whole=True)


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
    with template_errors():
        require_template(arguments.build)
    if not text:
        raise UserError("a prompt is empty", "give it one token or more")
    return [*system_message(arguments.system), {"role": "user", "content": text}]


def note_template(arguments: argparse.Namespace) -> None:
    """Note on standard error that the prompt goes through the chat template, if no flag says so."""
    if arguments.chat is None:
        say(NOTE)


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
    """The text, or None where none was given. Raises UserError."""
    if arguments.prompt_file is not None:
        return read_file(arguments.prompt_file)
    if arguments.prompt and os.path.isfile(arguments.prompt):  # noqa: PTH113  # never raises
        say("note: the prompt is the name of a file, whose text --prompt-file would give")
    return _valid(arguments.prompt)


def require(arguments: argparse.Namespace) -> str:
    """The text. Raises UserError where none was given."""
    if (text := read(arguments)) is None:
        raise UserError(
            "a prompt is missing",
            f'add it in quotes: `snapexport {arguments.command} BUILD "..."`; or --prompt-file '
            "FILE, where - is standard input",
        )
    return text


def read_file(name: str) -> str:
    """The text of a file; -: of standard input. Raises UserError."""
    return decode(read_bytes(name))


def decode(raw: bytes, what: str = "the prompt") -> str:
    """The text of a file, with line breaks as on Unix. A byte order mark says how it is encoded.

    Raises UserError, which names `what`.
    """
    marked = [(mark, name) for mark, name in _MARKS if raw.startswith(mark)]
    mark, encoding = marked[0] if marked else (b"", "utf-8")
    try:
        return raw.removeprefix(mark).decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        place = f"{error.reason} at byte {len(mark) + error.start}"
        raise UserError(
            f"{what} is not {encoding.upper()}: {place}",
            "convert it, for example with `iconv -t utf-8`",
        ) from None


def read_bytes(name: str, what: str = "the prompt") -> bytes:
    """A file's bytes; -: those of standard input. Raises UserError, which names `what`."""
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}", "check its name") from None
    if len(raw) > MOST_BYTES:
        raise UserError(f"{what} has more than {MOST_BYTES} bytes", "give a shorter text")
    return raw


def _valid(text: str | None) -> str | None:
    """The text. Raises UserError if it was not UTF-8, which Python reads as lone surrogates."""
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError("--prompt is not UTF-8", "write the prompt to a file as UTF-8")
    return text
