"""Holds the full-length cache of the prompt in prefill, and knows which tokens are in it.

Knows no batch slot and no request.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry
from snapexport.contract.pieces import InnerChunks
from snapexport.runtime.engine.backend import Buffer, Buffers, Memory


class PromptCache:
    """Keys and values [1,Hkv,T,D] of one prompt, and the tokens whose whole chunks they hold.

    A chunk that the last prompt had at the same place is in the cache already, to the bit, and is
    not run again, and neither is a whole prompt that equals the last one. Executors of the same
    model on one device may share a cache if each prompt is prefilled to its end.

    Recurrent states are those after the last chunk. They have no positions, so with them only a
    whole prompt is taken from the cache.

    Prefill graphs of smaller capacity N take the beginning of the same memory as [1,Hkv,N,D];
    `resize` moves the heads to where the next graph reads them.
    """

    def __init__(
        self, memory: Memory, prefill: GraphEntry, inner: InnerChunks | None = None
    ) -> None:
        """inner: chunks that a graph of their own writes, otherwise than prefill."""
        self.inner = inner
        specs = {spec.name: spec for spec in prefill.inputs}
        held = {name: memory.allocate(specs[name]) for name in specs if names.is_past(name)}
        self._states = {name: one for name, one in held.items() if names.is_state(name)}
        self._pasts = {name: one for name, one in held.items() if name not in self._states}
        self._memory = memory
        self._chunk: int = specs[names.INPUT_IDS].shape[1]
        self._held: list[int] = []
        self._outputs: Buffers = {}
        self._finished: tuple[tuple[int, ...], float | None] = (), None
        self._written: set[Hashable] = set()
        self._is_whole = False
        self._capacity = next(iter(self._pasts.values())).shape[2]
        self.buffers = self.of_capacity(self._capacity)

    def suits(self, prefill: GraphEntry) -> bool:
        """Whether the graph's caches are the same, and have the same types."""
        taken = {spec.name: spec.dtype for spec in prefill.inputs if names.is_past(spec.name)}
        return taken == {name: one.dtype for name, one in (self._pasts | self._states).items()}

    def outputs(self, prefill: GraphEntry) -> Buffers:
        """The prefill graph's outputs but the caches: of equal shape, they are shared as well."""
        specs = [spec for spec in prefill.outputs if spec.name not in self.buffers]
        keys = {spec.name: f"{spec.name} {spec.shape}" for spec in specs}
        for spec in specs:
            if keys[spec.name] not in self._outputs:
                self._outputs[keys[spec.name]] = self._memory.allocate(spec)
        return {name: self._outputs[key] for name, key in keys.items()}

    def of_capacity(self, capacity: int) -> Buffers:
        """The beginning of the memory, as inputs and outputs of a graph of that capacity."""
        pasts = {name: _with_positions(one, capacity) for name, one in self._pasts.items()}
        pasts |= self._states
        return pasts | {names.present_of(name): one for name, one in pasts.items()}

    def begin(self) -> None:
        """Make the states those before a prompt; the last prompt is no longer held to its end."""
        self._is_whole = False
        for state in self._states.values():
            self._memory.zero(state)

    def resize(self, capacity: int, count: int) -> None:
        """Make room for `capacity` positions, and keep the first `count`.

        Of two capacities one is at least twice the other, so that no head overlaps its new place.
        """
        if capacity == self._capacity:
            return
        former, self._capacity = self._capacity, capacity
        del self._held[count:]
        for past in self._pasts.values() if count else ():
            for head in _order(past.shape[1], grows=capacity > former):
                target = _positions(past, head * capacity, count)
                self._memory.copy(target, _positions(past, head * former, count))

    def holds(self, token_ids: Sequence[int], start: int) -> bool:
        """Whether running a chunk at position `start` would change nothing."""
        if self._states:
            return False
        end = start + len(token_ids)
        return end <= len(self._held) and self._held[start:end] == list(token_ids)

    def held_of(self, prompt: Sequence[int]) -> int:
        """Tokens at a prompt's beginning whose chunks are not run again; its end always is."""
        starts = range(0, len(prompt) - self._chunk, self._chunk)
        chunks = takewhile(lambda at: self.holds(prompt[at : at + self._chunk], at), starts)
        return self._chunk * sum(1 for _ in chunks)

    def is_finished(
        self, prompt: Sequence[int], temperature: float | None, outputs: Hashable
    ) -> bool:
        """Whether caches and outputs are those of the whole prompt. Arguments: as in `wrote`."""
        return (
            self._is_whole
            and outputs in self._written
            and len(prompt) == len(self._finished[0])
            and (tuple(prompt), temperature) == self._finished
        )

    def wrote(
        self,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float | None,
        outputs: Hashable,
    ) -> None:
        """Note that the chunk [start, end) was run.

        A prompt's last chunk may start inside another one; what it overlaps no longer counts as
        held, nor does a last chunk that would run in a graph of its own inside a prompt.

        temperature: None where the outputs do not depend on it. outputs: their names and shapes;
        outputs of equal name and shape are the same memory, whatever graph writes them.
        """
        self._is_whole = end == len(prompt)
        if self._is_whole:
            finished = tuple(prompt), temperature
            if finished != self._finished:
                self._finished = finished
                self._written.clear()
            self._written.add(outputs)
        aligned = start - start % self._chunk
        del self._held[aligned:]
        is_inner = self.inner is not None and self.inner.takes(start)
        if start == aligned == len(self._held) and not (self._is_whole and is_inner):
            self._held += prompt[start:end]

    def clear(self) -> None:
        """Forget all tokens, and zero keys and values."""
        self._held.clear()
        self._written.clear()
        for cache in (*self._pasts.values(), *self._states.values()):
            self._memory.zero(cache)


def _with_positions(past: Buffer, positions: int) -> Buffer:
    """The beginning of a cache's memory as [1,Hkv,N,...]."""
    batch, heads, _, *width = past.shape
    return past.reshape_to(batch, heads, positions, *width)


def _positions(past: Buffer, start: int, count: int) -> Buffer:
    """Some positions of a cache's memory, from position `start` of head 0 on."""
    _, heads, positions, *width = past.shape
    return past.reshape_to(heads * positions, *width).rows(start, start + count)


def _order(heads: int, *, grows: bool) -> Iterable[int]:
    """Heads in an order in which none is overwritten before it was moved. Head 0 stays."""
    return range(heads - 1, 0, -1) if grows else range(1, heads)
