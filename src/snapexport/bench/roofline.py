"""The least time that a piece of work can take on a machine whose two rates are known.

Bytes have to come from memory, products have to be calculated, and at best both happen at the same
time. What fits into the processor's cache may be faster than the roofline.
"""

import math
from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds by bandwidth and by arithmetic; the roofline is the longer one."""

    memory: float
    compute: float

    @classmethod
    def of(cls, work: Work, rates: Rates) -> "Roofline":
        return cls(work.nbytes / rates.nbytes, work.operations / rates.operations)

    @property
    def seconds(self) -> float:
        return max(self.memory, self.compute)

    @property
    def bound(self) -> str:
        """The one of the two that it is."""
        return "memory" if self.memory >= self.compute else "compute"
