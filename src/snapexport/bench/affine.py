"""Prefill's time from some of its chunks: a chunk's time grows by the positions before it.

All tokens of a chunk attend to what lies before it, so its time is a + b * past_length; that of a
prompt is the sum over its chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Affine:
    """seconds = start + slope * past_length, of one chunk."""

    start: float
    slope: float

    @classmethod
    def through(cls, past_lengths: Sequence[int], seconds: Sequence[float]) -> "Affine":
        """The line with the least squared relative errors: short chunks count as long ones do."""
        weights = 1 / np.asarray(seconds)
        slope, start = np.polyfit(past_lengths, seconds, 1, w=weights)
        return cls(float(start), float(slope))

    def at(self, past_length: int) -> float:
        """Of the chunk there."""
        return self.start + self.slope * past_length

    def prompt(self, length: int, chunk: int) -> float:
        """All chunks of a prompt that is a multiple of them."""
        assert length % chunk == 0, (length, chunk)
        return sum(self.at(past) for past in range(0, length, chunk))
