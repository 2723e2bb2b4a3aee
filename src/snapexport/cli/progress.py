"""Shows the progress of long commands on standard error: a bar at a terminal, else lines.

By --progress a line for each step, or nothing. Where nobody chose, and nobody watches, lines begin
after some seconds: short work stays quiet.
"""

import argparse
import time
from collections.abc import Callable
from typing import Literal, Self, get_args

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from snapexport.cli.console import ERR, duration

Mode = Literal["auto", "plain", "none"]
CACHED_SECONDS = 0.02
"""Most seconds of a chunk that was in the prompt cache."""
QUIET_SECONDS = 10.0
"""Time before the first line, and between two, where nobody chose."""
DESCRIPTION = TextColumn("{task.description}", markup=False)
_mode: Mode = "auto"


def add_progress(parser: argparse._ActionsContainer) -> None:
    """Add --progress."""
    parser.add_argument(
        "--progress",
        choices=get_args(Mode),
        default="auto",
        help="plain: a line for each step, on standard error; none: nothing; auto: a bar at a "
        "terminal, else lines after some seconds (default: auto)",
    )


def choose(mode: Mode) -> None:
    """Set how all progress of this process is shown."""
    global _mode
    _mode = mode


class Pace:
    """Estimates the time that is left, of work whose later parts may cost more.

    t = a n + b n^2, fitted to the times that n parts took: a chunk of a prompt attends to all
    before it.
    """

    def __init__(self) -> None:
        self._start: tuple[float, float] | None = None
        self._sums = [0.0] * 5
        self._last = (0.0, 0.0)

    def add(self, count: float, now: float) -> None:
        """Note that `count` parts are done. The first call says where the work begins."""
        if self._start is None:
            self._start = count, now
        else:
            x, y, t = self._from_start(count, now)
            for i, term in enumerate((x * x, x * y, y * y, x * t, y * t)):
                self._sums[i] += term
        self._last = count, now

    def remaining(self, total: float) -> float | None:
        """Seconds until `total` parts are done; None before the first part."""
        xx, xy, yy, xt, yt = self._sums
        if self._start is None or not xx:
            return None
        determinant = xx * yy - xy * xy
        a, b = xt / xx, 0.0
        if determinant > 1e-9 * xx * yy:
            a = (xt * yy - yt * xy) / determinant
            b = (yt * xx - xt * xy) / determinant
            if b < 0 or a < 0:
                a, b = (xt / xx, 0.0) if b < 0 else (0.0, yt / yy)
        done, whole = (self._from_start(n, 0.0)[:2] for n in (self._last[0], total))
        return max(0.0, a * (whole[0] - done[0]) + b * (whole[1] - done[1]))

    def _from_start(self, count: float, now: float) -> tuple[float, float, float]:
        assert self._start is not None
        first, began = self._start
        return count - first, count * count - first * first, now - began


class Shown:
    """A line of progress during the block. Lines are printed where there is no bar."""

    def __init__(self, *columns: ProgressColumn, total: int | None) -> None:
        self._draws = ERR.is_terminal and _mode == "auto"
        self._bars = Progress(*columns, console=ERR, transient=True, disable=not self._draws)
        self._line = self._bars.add_task("starting", total=total)
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Erase the line. A second call does nothing."""
        if self._bars.live.is_started:
            self._bars.stop()

    def _print(self, text: Callable[[], str], *, every: bool = True) -> None:
        """Print a line, where lines are wanted and it is time for one.

        every: whether --progress plain prints each.
        """
        if self._draws or _mode == "none":
            return
        now = time.monotonic()
        if (every and _mode == "plain") or now - self._printed > QUIET_SECONDS:
            self._printed = now
            ERR.print(text(), soft_wrap=True)


class BuildProgress(Shown):
    """Shows the stage of a build, and the bytes of weights written."""

    def __init__(self) -> None:
        super().__init__(SpinnerColumn(), DESCRIPTION, TimeElapsedColumn(), total=None)

    def stage(self, text: str) -> None:
        """Show that a stage begins."""
        self._stage, self._bytes = text, 0
        self._bars.update(self._line, description=text)
        self._print(lambda: text)

    def note(self, text: str) -> None:
        """Print a note above the line."""
        ERR.print(f"note: {text}", soft_wrap=True)

    def written(self, nbytes: int) -> None:
        """Add bytes to the stage's count."""
        self._bytes += nbytes
        text = f"{self._stage}: {self._bytes / 1e9:.2f} GB written"
        self._bars.update(self._line, description=text)
        self._print(lambda: text, every=False)


class AnswerProgress(Shown):
    """Counts answers, or what `counted` names, with the time that is left."""

    def __init__(self, total: int, counted: str = "answers") -> None:
        columns = TextColumn(counted), BarColumn(), MofNCompleteColumn(), DESCRIPTION
        super().__init__(*columns, total=total)
        self._total, self._counted, self._count, self._pace = total, counted, 0, Pace()
        self._bars.update(self._line, description="")
        self._pace.add(0, time.monotonic())

    def advance(self) -> None:
        """Count one more."""
        self._count += 1
        self._pace.add(self._count, time.monotonic())
        left = _spell_remaining(self._pace, self._total)
        self._bars.update(self._line, completed=self._count, description=left.removeprefix(", "))
        self._print(lambda: f"{self._count} of {self._total} {self._counted}{left}")


class PrefillProgress(Shown):
    """Counts a prompt's tokens that are prefilled, with the time that is left."""

    def __init__(self, total: int) -> None:
        super().__init__(SpinnerColumn(), DESCRIPTION, total=total)
        self._total, self._last, self._pace = total, time.monotonic(), Pace()
        self.show_prefilled(0)

    def show_prefilled(self, count: int) -> None:
        """Show the number of the prompt's tokens that are done."""
        now = time.monotonic()
        if now - self._last < CACHED_SECONDS:
            self._pace = Pace()  # chunks in the prompt cache say nothing about those to come
        self._pace.add(count, now)
        self._last = now
        left = _spell_remaining(self._pace, self._total)
        text = f"reading the prompt: {count:,} of {self._total:,} tokens{left}"
        self._bars.update(self._line, completed=count, description=text)
        if count:
            self._print(lambda: text)


def _spell_remaining(pace: Pace, total: int) -> str:
    seconds = pace.remaining(total)
    return f", about {duration(seconds)} left" if seconds else ""
