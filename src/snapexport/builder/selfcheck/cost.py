"""Estimates what a self-check takes beforehand, from the weights of the layers that it compares.

Measured on SmolLM3-3B's shapes, four layers of 300 MiB, two cores: 14 s and 4.1 GiB, of which 2.4
are files in memory that the system takes back when it needs them.
"""

from dataclasses import dataclass

from snapexport.contract.memory import size, spelled

MOST_BYTES = 5 << 30
"""Memory that a self-check takes at most."""

_COPIES = 3
"""Of the weights: the checkpoint's, transformers', and the graphs'."""
_FIXED_BYTES, _FIXED_SECONDS = 700 << 20, 7.0
_SECONDS_PER_BYTE = 7.0 / size("1GiB")


@dataclass(frozen=True)
class Cost:
    """What a self-check takes: bytes of memory at its peak, and seconds on two cores."""

    nbytes: int
    seconds: float

    @classmethod
    def of(cls, weights: int) -> "Cost":
        """weights: bytes of the compared layers, as fp32."""
        return cls(_FIXED_BYTES + _COPIES * weights, _FIXED_SECONDS + _SECONDS_PER_BYTE * weights)

    @property
    def is_bearable(self) -> bool:
        return self.nbytes <= MOST_BYTES

    def __str__(self) -> str:
        return f"about {self.seconds:.0f} s, {spelled(self.nbytes)}"
