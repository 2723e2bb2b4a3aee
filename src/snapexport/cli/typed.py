"""Reads the messages of `chat`: typed or pasted at a terminal, or lines of a pipe.

A message is a block of lines: those of a bracketed paste, or lines that come faster than anyone
types. A line that is a command is a block of its own. Knows no model.
"""

import io
import re
import select
import sys
import termios
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from snapexport.cli.signals import Interrupts
from snapexport.errors import UserError

PASTE_GAP = 0.1
"""Most seconds between two lines of a pasted block."""
FILE = "/file"
_COMMAND = re.compile(r"(/[a-z]+)(?:[ \t].*)?", re.IGNORECASE)


def command_of(line: str) -> str:
    """The command that a line begins with, such as /file; empty for a message.

    A line that begins with a space is a message, and so is "/usr/bin is a folder".
    """
    found = _COMMAND.fullmatch(line.rstrip())
    return found[1].lower() if found else ""


def piped_blocks() -> Iterator[str]:
    """Lines of standard input."""
    _accept_any_bytes()
    yield from (line.rstrip("\r\n") for line in sys.stdin)


def _accept_any_bytes() -> None:
    """A conversation goes on after bytes that are not UTF-8."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


class Keyboard:
    """A terminal's keys. While no line is read they are held for the next one, and not shown."""

    def __init__(self, interrupts: Interrupts, commands: Collection[str]) -> None:
        self._interrupts, self._commands = interrupts, commands
        self._terminal = sys.stdin.fileno()
        self._usual = termios.tcgetattr(self._terminal)
        self._prompt = "> " if sys.stdout and sys.stdout.isatty() else ""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold keys during the block, but for Ctrl-C."""
        self._hide()
        try:
            yield
        finally:
            self._set(self._usual)

    def blocks(self) -> Iterator[str]:
        """Blocks of lines, which can be edited. Ctrl-C drops a block, Ctrl-D ends."""
        _prepare_readline(self._commands)
        _accept_any_bytes()
        while True:
            lines: list[str] = []
            try:
                with self._interrupts.as_errors():
                    self._read_block(lines)
            except EOFError:
                print()
                if lines:
                    yield "\n".join(lines)
                return
            except KeyboardInterrupt:
                print()
                continue
            yield from self._split("\n".join(lines))

    def _read_block(self, lines: list[str]) -> None:
        """Add lines while more of them are there already."""
        lines += self._line(self._prompt).split("\n")
        while command_of(lines[0]) not in self._commands and self._has_more():
            lines += self._line("").split("\n")

    def _split(self, block: str) -> Iterator[str]:
        """The commands that a block begins with, and the rest of it."""
        first, newline, rest = block.partition("\n")
        while newline and command_of(first) in self._commands:
            yield first
            first, newline, rest = rest.partition("\n")
        yield first + newline + rest

    def _line(self, prompt: str) -> str:
        self._set(self._usual)  # readline shows what is typed only where the terminal would
        try:
            return input(prompt)
        finally:
            self._hide()

    def _has_more(self) -> bool:
        return bool(select.select([self._terminal], [], [], PASTE_GAP)[0])

    def _hide(self) -> None:
        held = [*self._usual]
        held[3] &= ~(termios.ECHO | termios.ICANON)
        self._set(held)

    def _set(self, attributes: list[Any]) -> None:
        termios.tcsetattr(self._terminal, termios.TCSANOW, attributes)


def _prepare_readline(commands: Collection[str]) -> None:
    """Let lines be edited, blocks be pasted, and Tab complete commands and names of files."""
    try:
        import readline
    except ImportError:  # some Pythons lack it
        return
    complete = _completions(readline, commands)
    readline.set_completer_delims("")
    readline.set_completer(lambda _, count: [*complete(), None][count])
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.parse_and_bind("tab: complete")


def _completions(
    readline: ModuleType, commands: Collection[str]
) -> "Callable[[], list[str | None]]":
    def complete() -> list[str | None]:
        line = readline.get_line_buffer()
        if line.startswith(f"{FILE} "):
            folder, slash, begun = line[len(FILE) + 1 :].lstrip().rpartition("/")
            found = sorted(_entries(Path(folder + slash).expanduser(), begun))
            return [f"{FILE} {folder}{slash}{name}" for name in found]
        if line.startswith("/"):
            return [f"{name} " for name in sorted(commands) if name.startswith(line)]
        return [line + "\t"]  # of a pasted text

    return complete


def _entries(folder: Path, begun: str) -> list[str]:
    """Names in a folder that begin so; folders end in a slash."""
    with suppress(OSError):
        return [
            path.name + "/" * path.is_dir()
            for path in folder.iterdir()
            if path.name.startswith(begun)
        ]
    return []


def split_file(words: str) -> tuple[str, str]:
    """The name of a file that words begin with, and what follows it. Raises UserError.

    Names may have spaces, in quotes, after \\ or as they are: the longest that exists counts.
    """
    words = words.strip()
    if not words:
        raise UserError(f"{FILE} names no file", f"type {FILE} PATH, or {FILE} PATH QUESTION")
    if quoted := re.fullmatch(r"([\"'])(.+?)\1\s*(.*)", words, re.DOTALL):
        return quoted[2], quoted[3]
    ends = [match.start() for match in re.finditer(r"\s|$", words)]
    for end in reversed(ends):
        for name in (words[:end], words[:end].replace("\\ ", " ")):
            if Path(name).expanduser().is_file():
                return name, words[end:].strip()
    return words, ""
