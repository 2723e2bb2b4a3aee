"""Computes prefill's time from the times of some of its chunks.

A chunk's tokens attend to all tokens before it, so a chunk takes a + b * past_length seconds, and a
prompt takes the sum over its chunks.
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
        """The line with the least squared relative errors, so that all chunks count alike."""
        weights = 1 / np.asarray(seconds)
        slope, start = np.polyfit(past_lengths, seconds, 1, w=weights)
        return cls(float(start), float(slope))

    def at(self, past_length: int) -> float:
        """Seconds of the chunk at `past_length`."""
        return self.start + self.slope * past_length

    def prompt(self, length: int, chunk: int) -> float:
        """Seconds of all chunks of a prompt whose length is a multiple of the chunk."""
        assert length % chunk == 0, (length, chunk)
        return sum(self.at(past) for past in range(0, length, chunk))
