"""Takes measurements in turn, so that a drift of the machine hits all alike.

Every second round goes backwards: nobody always comes first, or after the same one.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapexport.bench.floors import Rates, Work
from snapexport.bench.probes import Probe
from snapexport.bench.report import timing
from snapexport.bench.rounds import SHORT
from snapexport.bench.spread import Spread

Row = dict[str, Any]
Timed = Callable[[], float]
"""Does something once; the seconds that it took."""


@dataclass(frozen=True)
class Case:
    """A row of a table. labels: what is told of it beside its time.

    times: how often it is timed in a row, each round. warm: whether it is run once before, not
    counted. work: for its floor.
    """

    labels: Mapping[str, Any]
    timed: Timed
    times: int = 1
    warm: bool = True
    work: Work | None = None


def clocked(action: Callable[[], object]) -> Timed:
    """The same, timed by this process."""

    def timed() -> float:
        started = time.perf_counter()
        action()
        return time.perf_counter() - started

    return timed


def take_turns(cases: Sequence[Case], rounds: int) -> Iterator[tuple[int, float]]:
    """Warm up, then each case's number and seconds, one measurement at a time."""
    for case in cases:
        if case.warm:
            case.timed()
    order = list(enumerate(cases))
    for round in range(rounds):
        for number, case in order if round % 2 == 0 else reversed(order):
            for _ in range(case.times):
                yield number, case.timed()


def steps(cases: Sequence[Case], rounds: int) -> int:
    """How many measurements `take_turns` gives."""
    return rounds * sum(case.times for case in cases)


def probe_cases(probes: Sequence[Probe]) -> list[Case]:
    """What the machine can do, timed among the others."""
    return [
        Case({"probe": probe.measure, "amount": probe.amount}, clocked(probe.run), SHORT)
        for probe in probes
    ]


def rows(
    cases: Sequence[Case], taken: Mapping[int, Sequence[float]], rates: Rates | None
) -> list[Row]:
    """Labels, spread, floor and ratio of every case that was timed at least once."""
    return [
        {**case.labels, **timing(taken[number], case.work, rates)}
        for number, case in enumerate(cases)
        if taken.get(number)
    ]


def rate_rows(cases: Sequence[Case], taken: Mapping[int, Sequence[float]]) -> Row:
    """Bytes and operations a second, by the probe's name."""
    return {
        case.labels["probe"]: Spread.of([case.labels["amount"] / s for s in taken[number]]).report()
        for number, case in enumerate(cases)
        if "probe" in case.labels and taken.get(number)
    }


def rates(cases: Sequence[Case], taken: Mapping[int, Sequence[float]]) -> Rates | None:
    """Their medians; None before both were taken."""
    found = {
        case.labels["probe"]: case.labels["amount"] / statistics.median(taken[number])
        for number, case in enumerate(cases)
        if "probe" in case.labels and taken.get(number)
    }
    return Rates(found["bandwidth"], found["matmul"]) if len(found) == 2 else None
