"""Prints results to standard output, and notes to standard error.

A text is printed as it is: names of files and models may hold what rich takes for markup. Styles
are given by `style` or as `rich.text.Text`.
"""

import io
import re
import sys
import textwrap
from collections.abc import Mapping

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

_UNIT = re.compile("(?<=[0-9]) (?=([KMGT]i)?B|s|min|tokens)")


def print_estimate(what: str, seconds: float, nbytes: int) -> None:
    """Print on standard error the work to come, its time and its memory."""
    ERR.print(
        f"{what}: about {duration(seconds)}, {spelled(nbytes)} of weights and caches",
        style="dim",
        soft_wrap=True,
    )


def duration(seconds: float) -> str:
    """Spell a time, such as 40 s, 5 min or 3.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_prose(
    text: str, *, to: Console = OUT, indent: str = "", style: str | None = None
) -> None:
    """Print a text, broken at spaces at a terminal's width, and a line in a pipe."""
    if to.is_terminal:
        text = textwrap.fill(
            _UNIT.sub("\xa0", text),  # a number stays with its unit
            to.width,
            initial_indent=indent,
            subsequent_indent=2 * indent,
            break_long_words=False,
            break_on_hyphens=False,
        ).replace("\xa0", " ")
    else:
        text = indent + text
    to.print(text, style=style, soft_wrap=True)


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
