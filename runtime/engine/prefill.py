"""Takes a prompt into a batch slot's caches: in a single shot, or chunk by chunk.

    single shot        one run takes the whole padded prompt into the batch slot
    chunk by chunk     runs fill the prompt cache; the last one is followed by a `FillSlot`

Knows no request.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from snapexport.contract import names
from snapexport.runtime.engine.backend import Buffer
from snapexport.runtime.engine.bound_graph import BoundGraph, HostArrays
from snapexport.runtime.engine.fill_slot import FillByGraph, FillSlot
from snapexport.runtime.engine.predictions import FIRST, Prediction, Predictions
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.repetition import Repetition, repeated_chunk, repeated_starts
from snapexport.runtime.requests.sampling import can_sample


class SingleShot:
    """Takes the whole padded prompt in one run, which writes the batch slot."""

    def __init__(self, into_slot: FillByGraph) -> None:
        self.into_slot = into_slot

    def run(
        self,
        slot: int,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float,
    ) -> Prediction:
        """Fill the batch slot; the prediction is of the token after the prompt."""
        assert start == 0 and end == len(prompt)
        write_tokens(self.into_slot.graph.arrays, prompt, temperature)
        self.into_slot.fill(slot, end)
        return Predictions(self.into_slot.graph, FIRST)[0]

    @property
    def hidden_states(self) -> Buffer | None:
        """Of the latest prompt, [1,T,E], of a build with --mtp."""
        return self.into_slot.graph.buffers.get(names.HIDDEN_STATES)

    def clear(self) -> None:
        """Do nothing: there is no cache but the batch slot's."""


class Chunked:
    """Takes a chunk at a time into the prompt cache, which fills the batch slot at the end.

    A chunk runs in the graph of the smallest capacity that holds the prompt so far.
    """

    def __init__(
        self,
        graphs: Mapping[int, BoundGraph],
        cache: PromptCache,
        into_slot: FillSlot,
        repetition: Repetition | None = None,
    ) -> None:
        """graphs: by capacity, ascending; the largest one's cache is read by `into_slot`.

        repetition: where the queries of a repeated prompt vote.
        """
        self._graphs = graphs
        self._cache = cache
        self.into_slot = into_slot
        self._repetition = repetition
        self._after_prompt: Prediction | None = None
        *_, (self._largest, graph) = graphs.items()
        self._chunk: int = graph.arrays[names.INPUT_IDS].shape[1]
        self._no_logits = np.zeros_like(graph.arrays[names.LOGITS][0])
        self._outputs = frozenset((name, one.shape) for name, one in graph.buffers.items())
        self._is_tempered = names.TEMPERATURE in graph.arrays
        self.hidden_states: Buffer | None = None
        """Of the latest chunk, [1,C,E], of a build with --mtp; None if nothing was run for it."""

    def run(
        self,
        slot: int,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float,
    ) -> Prediction:
        """Run the tokens at positions [start, end); the last chunk fills the batch slot.

        The prediction is of the token after the chunk. A chunk that is in the cache already gives
        zeros: nobody reads logits amid a prompt. Nothing is run for the last prompt's tokens.
        A prompt that is repeated fills it in the last `repeat`.
        """
        is_last, told = end == len(prompt), temperature if self._is_tempered else None
        is_finished = self._cache.is_finished(prompt, told, self._outputs)
        self.hidden_states = None
        if not is_last and (is_finished or self._cache.holds(prompt[start:end], start)):
            return Prediction(lambda: self._no_logits)
        if not is_finished:
            self._run(prompt, start, end, temperature)
            self._cache.wrote(prompt, start, end, told, self._outputs)
            self.hidden_states = self._graphs[self._largest].buffers.get(names.HIDDEN_STATES)
        prediction = Predictions(self._graphs[self._largest], FIRST)[0]
        if is_last and self._repetition and self._repetition.follows(end):
            self._after_prompt = prediction = prediction.copied()
        elif is_last:
            self._fill(slot, end, end)
        return prediction

    def repeat(self, slot: int, prompt: Sequence[int], index: int) -> Prediction:
        """Run a repeated chunk of the prompt that is in the cache; the last one fills the slot.

        The prediction is of the token after the prompt, or of the chunk if that is not finite.
        """
        assert self._repetition and self._after_prompt, "the prompt is not repeated"
        if index == 0:
            self._repetition.begin()
        length = len(prompt)
        whole = [*prompt, *repeated_chunk(prompt, self._chunk, index)]
        self._run(whole, length, len(whole), 1.0, self._largest)
        told = 1.0 if self._is_tempered else None
        self._cache.wrote(whole, length, len(whole), told, self._outputs)
        prediction = Predictions(self._graphs[self._largest], FIRST)[0]
        if not can_sample(prediction):
            return prediction
        self._repetition.add(length)
        if index + 1 == len(repeated_starts(length, self._chunk)):
            self._fill(slot, length, len(whole))
        return self._after_prompt

    def vote_again(self, slot: int, prompt: Sequence[int], pseudo_tokens: Sequence[int]) -> None:
        """Fill the batch slot by the vote of tokens behind the prompt that is in the cache.

        They end a chunk, which computes the prompt's end again before them. There are W, or none:
        then the queries of the last chunk vote as before.
        """
        whole = [*prompt, *pseudo_tokens]
        end = len(whole)
        if pseudo_tokens:
            start, temperature = max(0, end - self._chunk), 1.0
            self._run(whole, start, end, temperature)
            told = temperature if self._is_tempered else None
            self._cache.wrote(whole, start, end, told, self._outputs)
        self._fill(slot, len(prompt), end)

    def _fill(self, slot: int, prompt_length: int, count: int) -> None:
        """count: tokens in the cache."""
        self._cache.resize(self._largest, count)
        self.into_slot.fill(slot, prompt_length)

    def _run(
        self, prompt: Sequence[int], start: int, end: int, temperature: float, capacity: int = 0
    ) -> None:
        """capacity: of the graph; 0: the smallest one that suffices."""
        capacity = capacity or next(one for one in self._graphs if one >= start + self._chunk)
        self._cache.resize(capacity, start)
        graph = self._graphs[capacity]
        write_tokens(graph.arrays, prompt[start:end], temperature)
        graph.arrays[names.PAST_LENGTH][:] = start
        graph.arrays[names.CHUNK_LENGTH][:] = end - start
        graph.run()

    def clear(self) -> None:
        """Clear the prompt cache."""
        self._cache.clear()


Prefill = SingleShot | Chunked


def write_tokens(arrays: HostArrays, token_ids: Sequence[int], temperature: float) -> None:
    """Write a chunk's tokens, padded with zeros, and the temperature if the graph takes it."""
    row = arrays[names.INPUT_IDS][0]
    row[: len(token_ids)] = token_ids
    row[len(token_ids) :] = 0
    if names.TEMPERATURE in arrays:
        arrays[names.TEMPERATURE][:] = temperature
