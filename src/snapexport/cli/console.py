"""Prints results to standard output and, on a terminal, progress to standard error.

A text is printed as it is: names of files and models may hold what rich takes for markup. Styles
are given by `style` or as `rich.text.Text`.
"""

import io
import sys
from types import TracebackType
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def written(self, nbytes: int) -> None:
        """Add bytes to the stage's count."""
        self._bytes += nbytes
        self._bars.update(
            self._line, description=f"{self._stage}: {self._bytes / 1e9:.2f} GB written"
        )


class AnswerProgress(_OneLine):
    """A bar that counts answers, with the time that is left."""

    def __init__(self, total: int) -> None:
        columns = TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        super().__init__(*columns, total=total)

    def advance(self) -> None:
        """One more answer."""
        self._bars.advance(self._line)
