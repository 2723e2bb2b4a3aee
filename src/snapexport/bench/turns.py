"""Takes measurements in turn, so that a drift of the machine hits all alike.

Every second round goes backwards: nothing always comes first, or after the same case. Knows no
system: a case brings its own clock.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapexport.bench.probes import Probe
from snapexport.bench.roofline import Rates, Roofline, Work
from snapexport.bench.spread import Spread, rounded

Row = dict[str, Any]
Timed = Callable[[], float]
"""Does something once; returns the seconds that it took."""

RATES = "rates"
SHORT = 4
"""How often short work is timed in each round: it takes little, and scatters much."""


@dataclass(frozen=True, eq=False)
class Case:
    """A row of a results file. labels: what the row says beside its time.

    section: where the row goes. times: how often the case is timed in a row, in each round. warm:
    whether it runs once before, not counted. work: for its roofline. tokens: that a run makes.
    """

    section: str
    labels: Mapping[str, Any]
    timed: Timed
    times: int = 1
    warm: bool = True
    work: Work | None = None
    tokens: int | None = None


Group = Sequence[Case]
"""Cases that keep their order in every round: a prompt comes before the steps behind it."""

Taken = Mapping[Case, Sequence[float]]
"""The seconds of each case."""


def clocked(action: Callable[[], object]) -> Timed:
    """The same action, timed by this process."""

    def timed() -> float:
        started = time.perf_counter()
        action()
        return time.perf_counter() - started

    return timed


def alone(cases: Sequence[Case]) -> list[Group]:
    """Each case in a group of its own."""
    return [[case] for case in cases]


def take_turns(groups: Sequence[Group], rounds: int) -> Iterator[tuple[Case, float]]:
    """Warm up, then yield each case and its seconds, one measurement at a time."""
    for group in groups:
        for case in group:
            if case.warm:
                case.timed()
    for number in range(rounds):
        for group in groups if number % 2 == 0 else reversed(groups):
            for case in group:
                for _ in range(case.times):
                    yield case, case.timed()


def count(groups: Sequence[Group], rounds: int) -> int:
    """How many measurements `take_turns` yields."""
    return rounds * sum(case.times for group in groups for case in group)


def probe_cases(probes: Sequence[Probe]) -> list[Case]:
    """What the machine can do, timed among the others."""
    return [
        Case(RATES, {"probe": probe.name, "amount": probe.amount}, clocked(probe.run), SHORT)
        for probe in probes
    ]


def rows(taken: Taken, rates: Rates | None) -> Iterator[tuple[str, Row]]:
    """Section and row of every case that was timed at least once, but the probes'."""
    for case, seconds in taken.items():
        if case.section != RATES:
            row = {**case.labels, **timing(seconds, case.work, rates)}
            if case.tokens is not None:
                row["tokens_per_second"] = rounded(case.tokens / statistics.median(seconds))
            yield case.section, row


def timing(seconds: Sequence[float], work: Work | None, rates: Rates | None) -> Row:
    """The spread, the roofline and how many times the roofline the median is."""
    spread = Spread.of(seconds)
    row: Row = {"seconds": spread.report(), "roofline": None, "ratio": None}
    if work is None or rates is None:
        return row
    least = Roofline.of(work, rates)
    return row | {
        "roofline": {
            "seconds": rounded(least.seconds),
            "bound": least.bound,
            "bytes": work.nbytes,
            "operations": work.operations,
        },
        "ratio": rounded(spread.median / least.seconds),
    }


def rate_row(taken: Taken) -> Row:
    """Bytes and operations a second, by the probe's name."""
    return {
        case.labels["probe"]: Spread.of([case.labels["amount"] / s for s in seconds]).report()
        for case, seconds in taken.items()
        if case.section == RATES
    }


def rates(taken: Taken) -> Rates | None:
    """Their medians; None before the bandwidth was probed."""
    medians = {
        case.labels["probe"]: case.labels["amount"] / statistics.median(seconds)
        for case, seconds in taken.items()
        if case.section == RATES
    }
    if "bandwidth" not in medians:
        return None
    operations = {"operations": medians["matmul"]} if "matmul" in medians else {}
    return Rates(medians["bandwidth"], **operations)
