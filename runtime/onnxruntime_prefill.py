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


class Chunked:
    """A chunk at a time into the full-length cache, which the hand-over reads at the end."""

    def __init__(self, graph: Graph, buffers: Buffers, hand_over: HandOver) -> None:
        self.buffers = buffers
        self._bound = graph.bind(buffers)
        self._hand_over = hand_over

    def run(
        self, slot: int, token_ids: Sequence[int], past_length: int, prompt_length: int
    ) -> Logits:
        """The chunk's logits [V]; the prompt's last chunk fills the slot."""
        _write_tokens(self.buffers, token_ids)
        self.buffers[names.PAST_LENGTH][:] = past_length
        self.buffers[names.CHUNK_LENGTH][:] = len(token_ids)
        self._bound.run()
        if past_length + len(token_ids) == prompt_length:
            self._hand_over.fill(slot, prompt_length)
        return _logits(self.buffers)


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
