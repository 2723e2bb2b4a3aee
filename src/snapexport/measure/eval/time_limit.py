"""Leaves out the samples for which an evaluation has no time. Knows no model."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from snapexport.measure.eval.grid import Cell

Work = TypeVar("Work")


class TimeLimit:
    """Counts from when it is made. left_out: the cells without time.

    A cell's time is judged by what a prompt token of the cells before took, so one is always run.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.left_out: list[Cell] = []
        self._clock, self._end = clock, clock() + seconds
        self._per_token = 0.0

    def within(self, pending: Mapping[Cell, Work]) -> Iterator[tuple[Cell, Work]]:
        """The cells for which there is time, each with its work; the first one of each task, then
        the second ones, and so on."""
        start, tokens = self._clock(), 0
        for cell in in_turn(pending):
            if tokens and self._clock() + self._per_token * cell.length > self._end:
                self.left_out.append(cell)
                continue
            yield cell, pending[cell]
            tokens += cell.length
            self._per_token = (self._clock() - start) / tokens

    @property
    def seconds_left_out(self) -> float:
        """What the left-out cells would take, at the pace of those that were run."""
        return self._per_token * sum(cell.length for cell in self.left_out)


def in_turn(cells: Iterable[Cell]) -> list[Cell]:
    """The cells in rounds that have one of each task and length."""
    seen: Counter[tuple[str, int]] = Counter()
    rounds: list[tuple[int, Cell]] = []
    for cell in cells:
        rounds.append((seen[cell.task, cell.length], cell))
        seen[cell.task, cell.length] += 1
    return [cell for _, cell in sorted(rounds, key=lambda pair: pair[0])]
