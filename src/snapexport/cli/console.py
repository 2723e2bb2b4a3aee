"""Prints results to standard output and, on a terminal, progress to standard error.

A text is printed as it is: names of files and models may hold what rich takes for markup. Styles
are given by `style` or as `rich.text.Text`.
"""

import io
import re
import sys
import textwrap
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
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

CACHED_SECONDS = 0.02
"""Most seconds of a chunk that was in the prompt cache."""

DESCRIPTION = TextColumn("{task.description}", markup=False)


_UNIT = re.compile("(?<=[0-9]) (?=([KMGT]i)?B|s|min|tokens)")


class _OneLine:
    """A line of progress on a terminal during the block; nothing where there is no terminal."""

    def __init__(self, *columns: ProgressColumn, total: int | None) -> None:
        self._bars = Progress(
            *columns,
            console=ERR,
            transient=True,
            disable=not ERR.is_terminal,
            speed_estimate_period=float("inf"),  # a chunk may take minutes
        )
        self._line = self._bars.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Erase the line. A second call does nothing."""
        if self._bars.live.is_started:
            self._bars.stop()


class BuildProgress(_OneLine):
    """Shows the stage of a build, and the bytes of weights written."""

    def __init__(self) -> None:
        columns = SpinnerColumn(), DESCRIPTION, TimeElapsedColumn()
        super().__init__(*columns, total=None)

    def stage(self, text: str) -> None:
        """Show that a stage begins."""
        self._stage, self._bytes = text, 0
        self._bars.update(self._line, description=text)

    def note(self, text: str) -> None:
        """Print a note above the line."""
        ERR.print(f"note: {text}", soft_wrap=True)

    def written(self, nbytes: int) -> None:
        """Add bytes to the stage's count."""
        self._bytes += nbytes
        self._bars.update(
            self._line, description=f"{self._stage}: {self._bytes / 1e9:.2f} GB written"
        )


class AnswerProgress(_OneLine):
    """A bar that counts answers, or what `counted` names, with the time that is left."""

    def __init__(self, total: int, counted: str = "answers") -> None:
        columns = TextColumn(counted), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        super().__init__(*columns, total=total)

    def advance(self) -> None:
        """Count one more."""
        self._bars.advance(self._line)


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


class PrefillProgress(_OneLine):
    """Counts a prompt's tokens that are prefilled, with the time that is left."""

    def __init__(self, total: int) -> None:
        columns = SpinnerColumn(), DESCRIPTION, TimeRemainingColumn()
        super().__init__(*columns, total=total)
        self._total, self._last = total, time.monotonic()
        self.show_prefilled(0)

    def show_prefilled(self, count: int) -> None:
        """Show the number of the prompt's tokens that are done."""
        now, text = time.monotonic(), f"{count:,} of {self._total:,} tokens"
        # Chunks in the prompt cache take no time, and say nothing about those to come.
        show = self._bars.reset if now - self._last < CACHED_SECONDS else self._bars.update
        show(self._line, completed=count, description=f"reading the prompt: {text}")
        self._last = now
