"""Prints results to standard output and, on a terminal, progress to standard error.

A text is printed as it is: names of files and models may hold what rich takes for markup. Styles
are given by `style` or as `rich.text.Text`.
"""

import io
import sys
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
    Task,
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

DESCRIPTION = TextColumn("{task.description}", markup=False)


class _OneLine:
    """A line of progress on a terminal during the block; nothing where there is no terminal."""

    def __init__(self, *columns: ProgressColumn, total: int | None) -> None:
        self._bars = Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal)
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


class TimeLeft:
    """Estimates the time that a prompt's prefill has left, from the chunks run so far.

    Chunks that took no time were in the prompt cache, and say nothing about those to come. The
    last chunk takes as long as a whole one.
    """

    held_seconds = 0.02

    def __init__(self, total: int, now: float) -> None:
        self._total, self._done = total, 0
        self._last = self._since = now
        self._chunks = 0
        self._end: float | None = None

    def note(self, done: int, now: float) -> None:
        """Take note of the number of tokens that are done."""
        chunk, took = done - self._done, now - self._last
        self._done, self._last = done, now
        if took < self.held_seconds:
            self._since = now
            return
        self._chunks += 1
        to_come = -(-(self._total - done) // chunk)
        self._end = now + to_come * (now - self._since) / self._chunks

    def seconds(self, now: float) -> float | None:
        """Seconds left, or None where no chunk was run yet."""
        return None if self._end is None else max(0.0, self._end - now)


class _SecondsLeft(ProgressColumn):
    """Counts down between two chunks too."""

    def __init__(self, left: TimeLeft) -> None:
        super().__init__()
        self._left = left

    def render(self, task: Task) -> Text:
        seconds = self._left.seconds(time.monotonic())
        return Text("" if seconds is None else f"{seconds:.0f} s left")


class PrefillProgress(_OneLine):
    """Counts a prompt's tokens that are prefilled, with the time that is left."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._left = TimeLeft(total, time.monotonic())
        columns = SpinnerColumn(), DESCRIPTION, _SecondsLeft(self._left)
        super().__init__(*columns, total=None)
        self._show(0)

    def show_prefilled(self, count: int) -> None:
        """Show the number of the prompt's tokens that are done."""
        self._left.note(count, time.monotonic())
        self._show(count)

    def _show(self, count: int) -> None:
        self._bars.update(
            self._line, description=f"reading the prompt: {count:,} of {self._total:,} tokens"
        )
