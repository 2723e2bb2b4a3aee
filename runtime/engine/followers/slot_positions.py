"""Keeps the position that each cache slot holds, for builds whose steps may take several tokens.

A step writes its tokens to cache slots in a row. Those that were not accepted are forgotten: the
next step writes over them. A step that would reach beyond the ring's end begins at its start.
"""

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry, LayerGeometry
from snapexport.runtime.engine.bound_graph import HostArrays

Integers = NDArray[np.int64]

EMPTY = -1
_KEPT = 0
"""What is told of a kept position: any number up to the step's own position would do."""


class CachePlaces:
    """The cache slots of all batch slots, for each shape of layers."""

    def __init__(self, geometry: CacheGeometry, batch: int) -> None:
        shapes = dict.fromkeys(geometry.layers)
        self._shapes = [_ShapePlaces(shape, batch) for shape in shapes]

    def fill(self, slot: int, prompt_length: int) -> None:
        """A prompt was compressed into a batch slot."""
        for shape in self._shapes:
            shape.fill(slot, prompt_length)

    def move(self, source: int, target: int) -> None:
        """A batch slot's caches were copied over another's."""
        for shape in self._shapes:
            shape.move(source, target)

    def write(self, arrays: HostArrays, position_ids: Integers) -> None:
        """Choose cache slots for a step, and write the step's inputs of them.

        position_ids: [N,C], of every batch slot that the graph runs, idle ones too.
        """
        count, tokens = position_ids.shape
        for index, shape in enumerate(self._shapes):
            for slot in range(count):
                shape.write(slot, int(position_ids[slot, 0]), tokens)
            write_slot, slot_positions = names.place_inputs(index)
            arrays[write_slot][:] = shape.first[:count]
            arrays[slot_positions][:] = shape.held[:count]

    def accept(self, slot: int, count: int, tokens: int) -> None:
        """Keep the first `count` of the `tokens` that the last step wrote to a batch slot."""
        for shape in self._shapes:
            shape.accept(slot, count, tokens)


class _ShapePlaces:
    """held: int64 [B,S]. first: int64 [B], the cache slot of the last step's first token."""

    def __init__(self, shape: LayerGeometry, batch: int) -> None:
        self._shape = shape
        self._ring_end = shape.L_sink + shape.ring_slots
        self.held = np.full((batch, shape.cache_slots), EMPTY, np.int64)
        self.first = np.zeros(batch, np.int64)
        self._next = np.zeros(batch, np.int64)

    def fill(self, slot: int, prompt_length: int) -> None:
        shape, held = self._shape, self.held[slot]
        held[: self._ring_end] = shape.source_positions(prompt_length)
        held[self._ring_end :] = EMPTY
        held[self._ring_end : self._ring_end + shape.kept(prompt_length)] = _KEPT
        self._next[slot] = shape.cache_slot(prompt_length)

    def move(self, source: int, target: int) -> None:
        self.held[target] = self.held[source]
        self._next[target] = self._next[source]

    def write(self, slot: int, position: int, tokens: int) -> None:
        first = int(self._next[slot])
        if first + tokens > self._ring_end:
            first = self._shape.L_sink
        self.first[slot] = first
        self.held[slot, first : first + tokens] = np.arange(position, position + tokens)
        self._next[slot] = first + tokens

    def accept(self, slot: int, count: int, tokens: int) -> None:
        first = int(self.first[slot])
        self.held[slot, first + count : first + tokens] = EMPTY
        self._next[slot] = first + count
