"""Takes measurements in turn, so that a drift of the machine hits all alike, and sums them up.

Every second round goes backwards: nothing always comes first, or after the same case. Sums are
medians, never means. Knows no system: a case brings its own clock.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Row = dict[str, Any]
Timed = Callable[[], float]
"""Does something once; returns the seconds that it took."""

RATES = "rates"
SHORT = 4
"""Times that short work is measured in each round: it takes little, and scatters much."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes that are read or written once, multiplications and additions: none can be avoided."""

    nbytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes and operations a second, as probed in the same run. A rate not probed is infinite."""

    nbytes: float
    operations: float = math.inf

    def roofline(self, work: Work) -> tuple[float, str]:
        """The least seconds, and what bounds them: memory or compute.

        At best both happen at the same time. What fits into the processor's cache may be faster.
        """
        memory, compute = work.nbytes / self.nbytes, work.operations / self.operations
        return max((memory, "memory"), (compute, "compute"), key=lambda bound: bound[0])


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
"""Cases that keep their order in every round: a prompt comes before its decode steps."""

Taken = Mapping[Case, Sequence[float]]
"""The seconds of each case."""


def timer(action: Callable[[], object]) -> Timed:
    """Make a function that times the action in this process."""
    return partial(seconds_of, action)


def probe(name: str, amount: int, action: Callable[[], object]) -> Case:
    """A case of section RATES: `amount` bytes or operations / its seconds is the rate `name`."""
    return Case(RATES, {"probe": name, "amount": amount}, timer(action), SHORT)


def singles(cases: Sequence[Case]) -> list[Group]:
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


def rows(taken: Taken, rates: Rates | None) -> Iterator[tuple[str, Row]]:
    """Section and row of every case that was timed at least once, but the probes'."""
    for case, seconds in taken.items():
        if case.section == RATES:
            continue
        row = {**case.labels, "seconds": spread(seconds), "roofline": None, "ratio": None}
        median = statistics.median(seconds)
        if case.work and rates:
            least, bound = rates.roofline(case.work)
            row["roofline"] = {"seconds": six_digits(least), "bound": bound}
            row["roofline"] |= {"bytes": case.work.nbytes, "operations": case.work.operations}
            row["ratio"] = six_digits(median / least)
        if case.tokens is not None:
            row["tokens_per_second"] = six_digits(case.tokens / median)
        yield case.section, row


def probe_spreads(taken: Taken) -> Row:
    """Spreads of bytes and operations a second, by the probe's name."""
    return {
        case.labels["probe"]: spread([case.labels["amount"] / one for one in seconds])
        for case, seconds in taken.items()
        if case.section == RATES
    }


def rates(found: Row) -> Rates | None:
    """The medians of what was probed; None before the bandwidth was."""
    medians = {name: one["median"] for name, one in found.items()}
    if "bandwidth" not in medians:
        return None
    return Rates(medians["bandwidth"], medians.get("matmul", math.inf))


def spread(values: Sequence[float]) -> Row:
    """Quartiles and extremes of at least one value."""
    found = map(six_digits, np.percentile(values, (0, 25, 50, 75, 100)).tolist())
    return {"samples": len(values)} | dict(
        zip(("min", "q1", "median", "q3", "max"), found, strict=True)
    )


def six_digits(value: float) -> float:
    """Six digits: more is noise, and hard to read."""
    return float(f"{value:.6g}")


def seconds_of(action: Callable[[], object]) -> float:
    """Run an action once, and return the seconds that it took."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
