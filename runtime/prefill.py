"""Takes a prompt into a batch slot's caches: in a single shot, or chunk by chunk.

    single shot        one run takes the whole padded prompt into the batch slot
    chunk by chunk     runs fill the prompt cache; the last one is followed by a `FillSlot`

Knows no request.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from snapexport.contract import names
from snapexport.runtime.bound_graph import BoundGraph, HostArrays
from snapexport.runtime.fill_slot import FillByGraph, FillSlot
from snapexport.runtime.predictions import Prediction, Predictions
from snapexport.runtime.prompt_cache import PromptCache


class SingleShot:
    """Takes the whole padded prompt in one run, which writes the batch slot."""

    def __init__(self, into_slot: FillByGraph) -> None:
        self._into_slot = into_slot

    def run(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float,
    ) -> Prediction:
        """Fill the batch slot; the prediction is of the token after the prompt."""
        assert past_length == 0 and len(token_ids) == prompt_length
        _write(self._into_slot.graph.arrays, token_ids, temperature)
        self._into_slot.fill(slot, prompt_length)
        return Predictions(self._into_slot.graph, 1)[0]

    def clear(self) -> None:
        """Do nothing: there is no cache but the batch slot's."""


class Chunked:
    """Takes a chunk at a time into the prompt cache, which fills the batch slot at the end.

    A chunk runs in the graph of the smallest capacity that holds the prompt so far.
    """

    def __init__(
        self, graphs: Mapping[int, BoundGraph], cache: PromptCache, into_slot: FillSlot
    ) -> None:
        """graphs: by capacity, ascending; the largest one's cache is read by `into_slot`."""
        self._graphs = graphs
        self._cache = cache
        self._into_slot = into_slot
        *_, (self._largest, graph) = graphs.items()
        self._chunk: int = graph.arrays[names.INPUT_IDS].shape[1]
        self._no_logits = np.zeros_like(graph.arrays[names.LOGITS][0])

    def run(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float,
    ) -> Prediction:
        """Run the tokens from position `past_length` on; the last chunk fills the batch slot.

        The prediction is of the token after the chunk. A chunk that is in the cache already gives
        zeros: nobody reads logits amid a prompt.
        """
        is_last = past_length + len(token_ids) == prompt_length
        if not is_last and self._cache.holds(token_ids, past_length):
            return Prediction(lambda: self._no_logits)
        capacity = next(one for one in self._graphs if one >= past_length + self._chunk)
        self._cache.resize(capacity, past_length)
        graph = self._graphs[capacity]
        _write(graph.arrays, token_ids, temperature)
        graph.arrays[names.PAST_LENGTH][:] = past_length
        graph.arrays[names.CHUNK_LENGTH][:] = len(token_ids)
        graph.run()
        self._cache.wrote(token_ids, past_length)
        if is_last:
            self._cache.resize(self._largest, prompt_length)
            self._into_slot.fill(slot, prompt_length)
        return Predictions(graph, 1)[0]

    def clear(self) -> None:
        """Clear the prompt cache."""
        self._cache.clear()


Prefill = SingleShot | Chunked


def _write(arrays: HostArrays, token_ids: Sequence[int], temperature: float) -> None:
    row = arrays[names.INPUT_IDS][0]
    row[: len(token_ids)] = token_ids
    row[len(token_ids) :] = 0
    if names.TEMPERATURE in arrays:
        arrays[names.TEMPERATURE][:] = temperature
