"""Computes the least time that a piece of work can take, from the two rates of a machine.

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

    def roofline(self, work: Work) -> tuple[float, str]:
        """The least seconds, and what bounds them: memory or compute."""
        memory, compute = work.nbytes / self.nbytes, work.operations / self.operations
        return max((memory, "memory"), (compute, "compute"), key=lambda bound: bound[0])
