"""The ways from a prompt to a slot's row of decode's caches: at once, or chunk by chunk.

    at once            prefill writes the row itself
    chunk by chunk     prefill fills one full-length cache, then a hand-over fills the row:
                       compress.onnx writes it, or the prompt's positions are copied
None knows a request.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from snapexport.contract import names
from snapexport.runtime.engine import Logits
from snapexport.runtime.onnxruntime_session import Buffers, Graph, buffers_for


class HandOver(Protocol):
    """From the full-length cache to a slot."""

    def fill(self, slot: int, prompt_length: int) -> None:
        """Rewrite the slot, so that nothing of its former prompt can be attended to."""
        ...


class SingleShot:
    """The whole padded prompt in one run, straight into the slot: one binding for each slot."""

    def __init__(self, graph: Graph, decode: Buffers, batch: int) -> None:
        self.buffers = buffers_for(graph.entry, _row(decode, 0))
        self._bound = [graph.bind(self.buffers | _row(decode, slot)) for slot in range(batch)]

    def run(
        self, slot: int, token_ids: Sequence[int], past_length: int, prompt_length: int
    ) -> Logits:
        """The prompt's logits [V]; the slot is filled."""
        assert past_length == 0 and len(token_ids) == prompt_length
        _write_tokens(self.buffers, token_ids)
        self.buffers[names.PROMPT_LENGTH][:] = prompt_length
        self._bound[slot].run()
        return _logits(self.buffers)

    def clear(self) -> None:
        """Nothing: there is no cache but the slot."""


class PromptCache:
    """The full-length cache of the prompt in prefill, and which tokens stand in it.

    Whole chunks of a prompt that begins like the last one are there already, to the bit: they are
    not run again. Engines of the same model may share one, if each prompt is prefilled to its end.
    """

    def __init__(self, graph: Graph) -> None:
        arrays = buffers_for(graph.entry)
        self.buffers = {name: arrays[name] for name in arrays if names.is_cache(name)}
        self._held: list[int] = []
        self._chunk = len(arrays[names.INPUT_IDS][0])

    def holds(self, token_ids: Sequence[int], start: int) -> bool:
        """Whether a chunk at `start` would write what is there."""
        end = start + len(token_ids)
        return end <= len(self._held) and self._held[start:end] == list(token_ids)

    def wrote(self, token_ids: Sequence[int], start: int) -> None:
        """A chunk was run. One off the grid, as the last is, spoils the chunks that it overlaps."""
        aligned = start - start % self._chunk
        del self._held[aligned:]
        if start == aligned == len(self._held):
            self._held += token_ids

    def clear(self) -> None:
        """Forget all, and leave no number that isn't finite."""
        self._held.clear()
        for cache in self.buffers.values():
            cache[...] = 0


class Chunked:
    """A chunk at a time into the full-length cache, which the hand-over reads at the end."""

    def __init__(
        self, graph: Graph, cache: PromptCache, buffers: Buffers, hand_over: HandOver
    ) -> None:
        self.buffers = buffers
        self._bound = graph.bind(buffers)
        self._cache = cache
        self._hand_over = hand_over
        self._no_logits = np.zeros_like(self.buffers[names.LOGITS][0], np.float32)

    def run(
        self, slot: int, token_ids: Sequence[int], past_length: int, prompt_length: int
    ) -> Logits:
        """The chunk's logits [V]; the prompt's last chunk fills the slot.

        A chunk that is in the cache already gives zeros: nobody reads logits amid a prompt.
        """
        is_last = past_length + len(token_ids) == prompt_length
        if not is_last and self._cache.holds(token_ids, past_length):
            return self._no_logits
        _write_tokens(self.buffers, token_ids)
        self.buffers[names.PAST_LENGTH][:] = past_length
        self.buffers[names.CHUNK_LENGTH][:] = len(token_ids)
        self._bound.run()
        self._cache.wrote(token_ids, past_length)
        if is_last:
            self._hand_over.fill(slot, prompt_length)
        return _logits(self.buffers)

    def clear(self) -> None:
        """Leave nothing of the prompt."""
        self._cache.clear()


class Compress:
    """compress.onnx from the full-length cache into the slot: one binding for each slot."""

    def __init__(self, graph: Graph, prefill: Buffers, decode: Buffers, batch: int) -> None:
        cached = {name: array for name, array in prefill.items() if not names.is_present(name)}
        self.buffers = buffers_for(graph.entry, cached | _row(decode, 0))
        self._bound = [graph.bind(self.buffers | _row(decode, slot)) for slot in range(batch)]

    def fill(self, slot: int, prompt_length: int) -> None:
        """Run the graph that writes every position of the slot."""
        self.buffers[names.PROMPT_LENGTH][:] = prompt_length
        self._bound[slot].run()


class Copy:
    """The prompt's positions, as they are. Later ones are stale until decode writes over them."""

    def __init__(self, prefill: Buffers, decode: Buffers) -> None:
        self._caches = [(prefill[name], row) for name, row in decode.items() if names.is_past(name)]

    def fill(self, slot: int, prompt_length: int) -> None:
        """Copy no more than the prompt."""
        for source, target in self._caches:
            target[slot, :, :prompt_length] = source[0, :, :prompt_length]


def _row(decode: Buffers, slot: int) -> Buffers:
    """The slot's part of decode's caches, as the cache outputs of a graph for one prompt."""
    return {
        name: array[slot : slot + 1] for name, array in decode.items() if names.is_present(name)
    }


def _logits(buffers: Buffers) -> Logits:
    """[V] of the only prompt, in fp32 whatever the build's dtype."""
    logits: Logits = buffers[names.LOGITS][0].astype(np.float32, copy=False)
    return logits


def _write_tokens(buffers: Buffers, token_ids: Sequence[int]) -> None:
    row = buffers[names.INPUT_IDS][0]
    row[: len(token_ids)] = token_ids
    row[len(token_ids) :] = 0
