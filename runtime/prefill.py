"""The ways from a prompt to a slot's row of decode's caches: at once, or chunk by chunk.

    at once            one run takes the whole prompt into the row
    chunk by chunk     prefill fills one full-length cache, then a hand-over fills the row
Both are the same for every engine, which brings the graphs and the hand-over. None knows a request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.runtime.engine import Logits
from snapexport.runtime.prompt_cache import CachedTokens

HostArrays = Mapping[str, NDArray[Any]]
"""What the host writes before a run and reads after it, by the graph's names."""


class HandOver(Protocol):
    """From a prompt to a slot."""

    def fill(self, slot: int, prompt_length: int) -> None:
        """Rewrite the slot, so that nothing of its former prompt can be attended to."""
        ...


class BoundGraph(Protocol):
    """A graph tied to its buffers."""

    def run(self) -> None:
        """From the inputs to the outputs."""
        ...


class SingleShot:
    """The whole padded prompt in one run, which the hand-over itself is."""

    def __init__(self, arrays: HostArrays, hand_over: HandOver) -> None:
        self._arrays = arrays
        self._hand_over = hand_over

    def run(
        self, slot: int, token_ids: Sequence[int], past_length: int, prompt_length: int
    ) -> Logits:
        """The prompt's logits [V]; the slot is filled."""
        assert past_length == 0 and len(token_ids) == prompt_length
        _write_tokens(self._arrays, token_ids)
        self._hand_over.fill(slot, prompt_length)
        return _logits(self._arrays)

    def clear(self) -> None:
        """Nothing: there is no cache but the slot."""


class Chunked:
    """A chunk at a time into the full-length cache, which the hand-over reads at the end."""

    def __init__(
        self, bound: BoundGraph, arrays: HostArrays, cache: CachedTokens, hand_over: HandOver
    ) -> None:
        self._bound = bound
        self._arrays = arrays
        self._cache = cache
        self._hand_over = hand_over
        self._no_logits = np.zeros_like(arrays[names.LOGITS][0], np.float32)

    def run(
        self, slot: int, token_ids: Sequence[int], past_length: int, prompt_length: int
    ) -> Logits:
        """The chunk's logits [V]; the prompt's last chunk fills the slot.

        A chunk that is in the cache already gives zeros: nobody reads logits amid a prompt.
        """
        is_last = past_length + len(token_ids) == prompt_length
        if not is_last and self._cache.holds(token_ids, past_length):
            return self._no_logits
        _write_tokens(self._arrays, token_ids)
        self._arrays[names.PAST_LENGTH][:] = past_length
        self._arrays[names.CHUNK_LENGTH][:] = len(token_ids)
        self._bound.run()
        self._cache.wrote(token_ids, past_length)
        if is_last:
            self._hand_over.fill(slot, prompt_length)
        return _logits(self._arrays)

    def clear(self) -> None:
        """Leave nothing of the prompt."""
        self._cache.clear()


def _logits(arrays: HostArrays) -> Logits:
    """[V] of the only prompt, in fp32 whatever the build's dtype."""
    logits: Logits = arrays[names.LOGITS][0].astype(np.float32, copy=False)
    return logits


def _write_tokens(arrays: HostArrays, token_ids: Sequence[int]) -> None:
    row = arrays[names.INPUT_IDS][0]
    row[: len(token_ids)] = token_ids
    row[len(token_ids) :] = 0
