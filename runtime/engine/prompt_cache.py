"""Holds the full-length cache of the prompt in prefill, and knows which tokens are in it.

Knows no batch slot and no request.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    whole prompt is taken from the cache, or chunks that `write` has put there with their states.

    A whole chunk can be copied out (`read`), and back at the same place of another prompt that
    begins with the same tokens (`write`).

    Prefill graphs of smaller capacity N take the beginning of the same memory as [1,Hkv,N,D];
    `resize` moves the heads to where the next graph reads them.

    reader: has yet to read the prompt, and does so before anything changes it; None: nobody has.
    """

    def __init__(
        self, memory: Memory, prefill: GraphEntry, inner: InnerChunks | None = None
    ) -> None:
        """inner: chunks that a graph of their own writes, otherwise than prefill."""
        self.inner = inner
        self.reader: Callable[[], None] | None = None
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
        self._border = 0
        """Tokens of this prompt after which `write` has put states; 0: they are others by now."""
        self._capacity = self._largest = next(iter(self._pasts.values())).shape[2]
        self._beside: Buffers = {}
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

    def add(self, beside: Buffers) -> None:
        """Add what inner chunks keep of the chunks before them, [1,Hkv,N,...]: N parts of T."""
        self._beside = beside

    def begin(self) -> None:
        """Make the states those before a prompt; the last prompt is no longer held to its end."""
        self._is_whole, self._border = False, 0
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
        end = start + len(token_ids)
        if self._states and end > self._border:
            return False
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
        self._is_whole, self._border = end == len(prompt), 0
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

    def enter(self, prompt: Sequence[int]) -> int:
        """Begin a prompt that `write` may fill; whole chunks of its beginning that are held."""
        self._border = 0
        if self._states:
            return 0
        pairs = enumerate(zip(self._held, prompt, strict=False))
        same = next((at for at, (own, given) in pairs if own != given), None)
        return (min(len(self._held), len(prompt)) if same is None else same) // self._chunk

    def specs(self, index: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The type and the shape of each part of whole chunk `index`, as `read` gives it."""
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for past in self._pasts.values():
            _, heads, _, *width = past.shape
            found[past.name] = past.dtype, (heads, self._chunk, *width)
        for one in self._beside.values():
            _, heads, _, *width = one.shape
            found[one.name] = one.dtype, (heads, self._parts_before(one, index), *width)
        return found | {one.name: (one.dtype, one.shape) for one in self._states.values()}

    def read(self, index: int) -> dict[str, NDArray[Any]]:
        """Copy whole chunk `index` of the prompt to the host, right after it was taken.

        Keys, values and votes [Hkv,C,...]; what inner chunks keep [Hkv,N,...], of all chunks before
        it; states as they are.
        """
        specs = self.specs(index)
        found = {name: np.empty(shape, dtype) for name, (dtype, shape) in specs.items()}
        for name, head, part in self._heads(index):
            found[name][head] = self._memory.read(part)
        return found | {name: self._memory.read(one) for name, one in self._states.items()}

    def write(self, index: int, tokens: Sequence[int], parts: Mapping[str, NDArray[Any]]) -> None:
        """Put whole chunk `index` of the prompt, with its tokens, after the chunks before it."""
        start = index * self._chunk
        self.resize(self._largest, start)
        assert len(self._held) >= start and len(tokens) == self._chunk
        del self._held[start:]  # before a device may fail
        self._is_whole, self._border = False, 0
        for name, head, part in self._heads(index):
            self._memory.write(part, parts[name][head])
        for name, state in self._states.items():
            self._memory.write(state, parts[name])
        self._held += tokens
        self._border = start + self._chunk

    def _heads(self, index: int) -> Iterator[tuple[str, int, Buffer]]:
        """The name, the head and the memory of each head's positions of a whole chunk."""
        for past in self._pasts.values():
            for head in range(past.shape[1]):
                start = head * self._capacity + index * self._chunk
                yield past.name, head, _positions(past, start, self._chunk)
        for one in self._beside.values():
            if count := self._parts_before(one, index):
                for head in range(one.shape[1]):
                    yield one.name, head, _positions(one, head * one.shape[2], count)

    def _parts_before(self, beside: Buffer, index: int) -> int:
        """Enough for the positions before a chunk, whether or not the parts fill the cache."""
        parts = beside.shape[2]
        return min(parts, -(-index * self._chunk * (parts + 1) // self._largest))

    def finish_reading(self) -> None:
        """Let the reader read the prompt, if there is one."""
        if reader := self.reader:
            self.reader = None
            reader()

    def forget(self) -> None:
        """Forget all tokens: the next prompt is run from its beginning."""
        self._held.clear()
        self._written.clear()
        self._border = 0

    def clear(self) -> None:
        """Forget all tokens, and zero keys and values."""
        self.forget()
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
