"""Reads the messages of a conversation: lines that a user types, or lines of a pipe."""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import suppress

from snapexport.cli.console import ERR
from snapexport.cli.signals import Interrupts

KNOWN = ("/exit", "/help", "/reset")
_COMMAND = re.compile(r"/\w+")


def typed(interrupts: Interrupts) -> Iterator[str]:
    """Lines from a terminal, which can be edited. Ctrl-C drops a line, Ctrl-D ends."""
    with suppress(ImportError):  # some Pythons lack it, and lines can't be edited then
        import readline  # noqa: F401
    _replace_what_is_no_text()
    while True:
        try:
            with interrupts.raised():
                line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        yield from _messages(line)


def piped() -> Iterator[str]:
    """Lines of standard input."""
    _replace_what_is_no_text()
    for line in sys.stdin:
        yield from _messages(line)


def _messages(line: str) -> Iterator[str]:
    """The line's message; none for an empty line, or a command that does not exist."""
    text = line.strip()
    if text in KNOWN or not _COMMAND.fullmatch(text):
        if text:
            yield text
        return
    ERR.print(f"there is no command {text}: /help lists them")


def _replace_what_is_no_text() -> None:
    """A conversation goes on after bytes that are not UTF-8."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
