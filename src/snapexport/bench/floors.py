"""The least time that a piece of work can take on a machine whose two rates are known.

The roofline: bytes have to come from memory, products have to be calculated, and at best both
happen at the same time. What fits into the processor's cache may be faster than the floor.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What can't be avoided: bytes read or written once, multiplications and additions."""

    nbytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine does in a second, as probed in the same run."""

    nbytes: float
    operations: float


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of each kind; the floor is the longer one."""

    memory: float
    compute: float

    @classmethod
    def of(cls, work: Work, rates: Rates) -> "Floor":
        return cls(work.nbytes / rates.nbytes, work.operations / rates.operations)

    @property
    def seconds(self) -> float:
        return max(self.memory, self.compute)

    @property
    def bound(self) -> str:
        """Which of the two it is."""
        return "memory" if self.memory >= self.compute else "compute"
