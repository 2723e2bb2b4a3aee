"""Holds the full-length cache of the prompt in prefill, and knows which tokens are in it.

Knows no batch slot and no request.
"""

from collections.abc import Sequence

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry
from snapexport.runtime.backend import Buffers, Memory


class PromptCache:
    """Keys and values [1,Hkv,T,D] of one prompt, and the tokens whose whole chunks they hold.

    A chunk that the last prompt had at the same place is in the cache already, to the bit, and is
    not run again. Executors of the same model on one device may share a cache if each prompt is
    prefilled to its end.
    """

    def __init__(self, memory: Memory, prefill: GraphEntry) -> None:
        specs = {spec.name: spec for spec in prefill.inputs}
        pasts = {name: memory.allocate(specs[name]) for name in specs if names.is_past(name)}
        self.buffers: Buffers = pasts | {names.present_of(n): one for n, one in pasts.items()}
        self._memory = memory
        self._chunk: int = specs[names.INPUT_IDS].shape[1]
        self._held: list[int] = []

    def holds(self, token_ids: Sequence[int], start: int) -> bool:
        """Whether running a chunk at position `start` would change nothing."""
        end = start + len(token_ids)
        return end <= len(self._held) and self._held[start:end] == list(token_ids)

    def wrote(self, token_ids: Sequence[int], start: int) -> None:
        """Note that a chunk was run.

        A prompt's last chunk may start amid another one; what it overlaps no longer counts as held.
        """
        aligned = start - start % self._chunk
        del self._held[aligned:]
        if start == aligned == len(self._held):
            self._held += token_ids

    def clear(self) -> None:
        """Forget all tokens, and zero keys and values."""
        self._held.clear()
        for name, cache in self.buffers.items():
            if names.is_past(name):
                self._memory.zero(cache)
