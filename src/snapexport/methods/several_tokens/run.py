"""Keeps the position that each cache slot holds, for builds whose steps may take several tokens.

A step writes its tokens to cache slots in a row. Those that were not accepted are forgotten: the
next step writes over them. A step that would reach beyond the ring's end begins at its start.
"""

import numpy as np

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.methods.several_tokens.spec import place_inputs
from snapexport.runtime.engine.bound_graph import HostArrays
from snapexport.runtime.engine.followers import SlotFollower
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.method import MethodRun
from snapexport.runtime.requests.drafters.continuation import Continuation
from snapexport.runtime.requests.drafters.prompt_lookup import PromptLookup

EMPTY = -1
_KEPT = 0
"""Kept cache slots only need a position that the mask lets through: 0 is such a position."""


class SlotPositions(SlotFollower):
    """The cache slots of all batch slots, for each shape of layers."""

    def __init__(self, geometry: CacheGeometry, batch: int) -> None:
        shapes = dict.fromkeys(geometry.layers)
        self._shapes = [_ShapePositions(shape, batch) for shape in shapes]
        self._tokens = geometry.steps.tokens
        self._was_fed = np.zeros(batch, bool)

    @classmethod
    def of(cls, loaded: Loaded) -> "SlotPositions | None":
        """None for a build whose steps take one token, and for a full cache."""
        geometry = loaded.manifest.geometry
        if not geometry.steps.several or loaded.graphs.full_cache:
            return None
        return cls(geometry, loaded.limits.batch)

    def fill(self, slot: int, prompt_length: int) -> None:
        self._was_fed[slot] = False
        for shape in self._shapes:
            shape.fill(slot, prompt_length)

    def move(self, source: int, target: int) -> None:
        self._was_fed[target] = self._was_fed[source]
        for shape in self._shapes:
            shape.move(source, target)

    def feed(self, arrays: HostArrays) -> None:
        """Choose cache slots for a step of every batch slot that the graph runs, idle ones too."""
        position_ids = arrays[names.POSITION_IDS]
        count, tokens = position_ids.shape
        self._was_fed[:count] = True
        for index, shape in enumerate(self._shapes):
            for slot in range(count):
                shape.write(slot, int(position_ids[slot, 0]), tokens)
            write_slot, slot_positions = place_inputs(index)
            arrays[write_slot][:] = shape.first[:count]
            arrays[slot_positions][:] = shape.held[:count]

    def accept(self, slot: int, count: int) -> None:
        for shape in self._shapes:
            shape.accept(slot, count, self._tokens)

    def discard(self, slot: int) -> None:
        for shape in self._shapes:
            shape.accept(slot, 0, 1)

    def is_in_caches(self, slot: int) -> bool:
        """After prefill, where the ring's order follows from the prompt's length."""
        return not self._was_fed[slot]


class _ShapePositions:
    """held: int64 [B,S]. first: int64 [B], the cache slot of the last step's first token."""

    def __init__(self, shape: LayerGeometry, batch: int) -> None:
        self._shape = shape
        self._ring_ends = np.zeros(batch, np.int64)
        self.held = np.full((batch, shape.cache_slots), EMPTY, np.int64)
        self.first = np.zeros(batch, np.int64)
        self._next = np.zeros(batch, np.int64)

    def fill(self, slot: int, prompt_length: int) -> None:
        shape = self._shape
        self.held[slot] = shape.source_positions(prompt_length, [_KEPT] * shape.K)
        self._ring_ends[slot] = shape.ring(prompt_length).stop
        self._next[slot] = shape.cache_slot(prompt_length, prompt_length)

    def move(self, source: int, target: int) -> None:
        self._ring_ends[target] = self._ring_ends[source]
        self.held[target] = self.held[source]
        self._next[target] = self._next[source]

    def write(self, slot: int, position: int, tokens: int) -> None:
        first = int(self._next[slot])
        if first + tokens > self._ring_ends[slot]:
            first = self._shape.L_sink
        self.first[slot] = first
        self.held[slot, first : first + tokens] = np.arange(position, position + tokens)
        self._next[slot] = first + tokens

    def accept(self, slot: int, count: int, tokens: int) -> None:
        first = int(self.first[slot])
        self.held[slot, first + count : first + tokens] = EMPTY
        self._next[slot] = first + count


class SeveralTokensRun(MethodRun):
    """Steps check what follows in the output so far, or what a request is given."""

    followers = (SlotPositions.of,)
    drafters = (lambda _: Continuation(), lambda _: PromptLookup())


RUN = SeveralTokensRun()
