"""Sums many measurements of one thing up in a few numbers: medians, never means."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """Quartiles, and the extremes, in the unit of the values."""

    samples: int
    min: float
    q1: float
    median: float
    q3: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """At least one value."""
        return cls(len(values), *(float(n) for n in np.percentile(values, (0, 25, 50, 75, 100))))

    def report(self) -> dict[str, float]:
        """For JSON."""
        return {name: rounded(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Tail:
    """What most see, and what the unlucky see."""

    samples: int
    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Tail":
        """At least one value."""
        return cls(len(values), *(float(n) for n in np.percentile(values, (50, 90, 99))))

    def report(self) -> dict[str, float]:
        """For JSON."""
        return {name: rounded(value) for name, value in asdict(self).items()}


def rounded(value: float) -> float:
    """Six digits: more is noise, and hard to read. Counts stay as they are."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
