"""Tells which row of decode's batch a batch slot is, and which rank holds its caches.

One rank holds all batch slots, in their order. Ranks whose attention is parallel over the batch
deal them out in turn: slot i is rank i mod N's, so that the first few slots are spread over all
ranks. Rows of a graph are in the order of the ranks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SlotRows:
    """rank: this one, of `ranks` that share the batch slots."""

    rank: int = 0
    ranks: int = 1

    def rows(self, count: int, slots: int) -> NDArray[np.int64]:
        """The rows of the first `count` batch slots in a graph of `slots` of them."""
        each, owner = divmod(np.arange(count), self.ranks)
        return owner * (slots // self.ranks) + each

    def owner(self, slot: int) -> int:
        """The rank that holds a batch slot's caches."""
        return slot % self.ranks

    def own(self, slot: int) -> int | None:
        """The row of a batch slot in this rank's caches; None: another rank holds it."""
        return slot // self.ranks if self.owner(slot) == self.rank else None
