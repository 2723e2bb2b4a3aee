"""The ways from a prompt to a slot's row of decode's caches: at once, or chunk by chunk.

    at once            one run takes the whole prompt into the row
    chunk by chunk     prefill fills one full-length cache, then a hand-over fills the row
Both are the same for every engine, which brings the graphs and the hand-over. None knows a request.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from snapexport.contract import names
from snapexport.runtime.bound_graph import BoundGraph, HostArrays
from snapexport.runtime.predictions import Prediction, Predictions
from snapexport.runtime.prompt_cache import CachedTokens


class HandOver(Protocol):
    """From a prompt to a slot."""

    def fill(self, slot: int, prompt_length: int) -> None:
        """Rewrite the slot, so that nothing of its former prompt can be attended to."""
        ...


class SingleShot:
    """The whole padded prompt in one run, which the hand-over itself is."""

    def __init__(self, bound: BoundGraph, hand_over: HandOver) -> None:
        """bound: what the hand-over runs, for any slot."""
        self._bound = bound
        self._hand_over = hand_over

    def run(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float,
    ) -> Prediction:
        """What follows the prompt; the slot is filled."""
        assert past_length == 0 and len(token_ids) == prompt_length
        _write(self._bound.arrays, token_ids, temperature)
        self._hand_over.fill(slot, prompt_length)
        return Predictions(self._bound, 1)[0]

    def clear(self) -> None:
        """Nothing: there is no cache but the slot."""


class Chunked:
    """A chunk at a time into the full-length cache, which the hand-over reads at the end."""

    def __init__(self, bound: BoundGraph, cache: CachedTokens, hand_over: HandOver) -> None:
        self._bound = bound
        self._cache = cache
        self._hand_over = hand_over
        self._no_logits = np.zeros_like(bound.arrays[names.LOGITS][0])

    def run(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float,
    ) -> Prediction:
        """What follows the chunk; the prompt's last chunk fills the slot.

        A chunk that is in the cache already gives zeros: nobody reads logits amid a prompt.
        """
        is_last = past_length + len(token_ids) == prompt_length
        if not is_last and self._cache.holds(token_ids, past_length):
            return Prediction(lambda: self._no_logits)
        arrays = self._bound.arrays
        _write(arrays, token_ids, temperature)
        arrays[names.PAST_LENGTH][:] = past_length
        arrays[names.CHUNK_LENGTH][:] = len(token_ids)
        self._bound.run()
        self._cache.wrote(token_ids, past_length)
        if is_last:
            self._hand_over.fill(slot, prompt_length)
        return Predictions(self._bound, 1)[0]

    def clear(self) -> None:
        """Leave nothing of the prompt."""
        self._cache.clear()


def _write(arrays: HostArrays, token_ids: Sequence[int], temperature: float) -> None:
    row = arrays[names.INPUT_IDS][0]
    row[: len(token_ids)] = token_ids
    row[len(token_ids) :] = 0
    if names.TEMPERATURE in arrays:
        arrays[names.TEMPERATURE][:] = temperature
