"""Prints results to standard output, and notes to standard error.

A text is printed as it is: names of files and models may hold what rich takes for markup. Styles
are given by `style` or as `rich.text.Text`.
"""

import io
import re
import shutil
import sys
from collections.abc import Callable, Mapping

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snapexport.contract.memory import spelled

# A "?" for what the encoding lacks is better than no output.
if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="replace")

ERR = Console(stderr=True, highlight=False, markup=False, emoji=False)
OUT = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
if not OUT.is_terminal:
    OUT.width = 120  # a pipe has no width, and 80 columns would cut the tables

_FENCE = re.compile(r"\s*(```|~~~)")
_AS_IT_IS = re.compile(r"(?:\s*\||\t| {4})")
"""How lines begin that are not wrapped: a table's, and indented code."""
_CLOSING = "、。，．！？：；）」』】》〉"
_OPENING = "（「『【《〈"
_JOINER = "\u200d"
_WHOLE = re.compile(r"`[^`\n]*`|[0-9] (?=(?:([KMGT]i)?B|s|min|tokens)\b)")
"""Commands, and a number with its unit: no line ends within them."""


class Wrapped:
    """Writes text as it comes, in lines that break at spaces and between wide characters.

    A word is written once it is complete. Lines of code and of tables stay as they are. width:
    called for the terminal's columns, which may change.
    """

    def __init__(self, write: Callable[[str], object], width: Callable[[], int]) -> None:
        self._write, self._width = write, width
        self._line = self._spaces = self._word = ""
        self._column, self._is_code = 0, False

    def __call__(self, text: str) -> None:
        """Add text, of any length."""
        for character in text:
            if character == "\n":
                self.end()
                self._is_code ^= bool(_FENCE.match(self._line))
                self._line, self._column = "", 0
                self._write("\n")
            elif character in " \t":
                self._place()
                self._spaces += character
            else:
                if self._word and _may_break(self._word, character):
                    self._place()
                self._word += character

    def end(self) -> None:
        """Write what is held back."""
        self._place()
        self._put(self._spaces)
        self._spaces = ""

    def _place(self) -> None:
        """Write the word that is complete, in the next line if this one has no room."""
        if not self._word:
            return
        spaces, word = self._spaces, self._word
        self._spaces = self._word = ""
        full = self._column + cell_len(spaces) + cell_len(word) > self._width()
        begun = self._line.strip() and not self._is_code and not _AS_IT_IS.match(self._line)
        if full and begun:
            self._write("\n")
            self._column, spaces = 0, ""
        self._put(spaces + word)

    def _put(self, text: str) -> None:
        self._write(text)
        self._line += text
        self._column += cell_len(text)


def _may_break(word: str, character: str) -> bool:
    """Whether a line may end between two characters: both in a word, or one of them is wide."""
    if not cell_len(character) or word[-1] == _JOINER or character in _CLOSING:
        return False
    if word[-1] in _OPENING or cell_len(word + character) < cell_len(word) + cell_len(character):
        return False  # the second joins one that is shown
    return cell_len(character) > 1 or cell_len(word[-1]) > 1


def columns() -> int:
    """The terminal's width."""
    return shutil.get_terminal_size().columns


def fold(text: str) -> str:
    """Prose of 80 columns, or the terminal's if it is narrower. Commands in `...` stay whole."""
    parts: list[str] = []
    whole = _WHOLE.sub(lambda found: found[0].replace(" ", "\xa0"), text)
    wrap = Wrapped(parts.append, lambda: min(80, columns()))
    wrap(whole)
    wrap.end()
    return "".join(parts).replace("\xa0", " ")


def say(text: str, style: str | None = None, console: Console = ERR) -> None:
    """Print prose, on standard error: in short lines on a terminal, in one elsewhere."""
    console.print(fold(text) if console.is_terminal else text, style=style, soft_wrap=True)


def print_estimate(what: str, seconds: float, nbytes: int) -> None:
    """Print on standard error the work to come, its time and its memory."""
    say(f"{what}: about {duration(seconds)}, {spelled(nbytes)} of weights and caches", "dim")


def duration(seconds: float) -> str:
    """Spell a time, such as 40 s, 5 min or 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_rows(rows: Mapping[str, str]) -> None:
    """A name and a text in each row: folded at a terminal's width, a line each in a pipe."""
    if OUT.is_terminal:
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, text in rows.items():
            table.add_row(Text(name, style="bold"), Text(text))
        OUT.print(table)
        return
    width = max(map(len, rows))
    for name, text in rows.items():
        OUT.print(f"{name:{width}}  {text}")
