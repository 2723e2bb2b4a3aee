"""Makes all ranks of a build do what the first one is asked to.

Each rank has an executor of its own, over its own part of the weights and caches. The first one
hands each call on to the others before it carries it out itself; they exchange tensors while graphs
run. What a graph says about the next token is the same in every rank.

Rows lie in several processes: none is handed over or parked, and no graph drafts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from snapexport.contract.manifest import Manifest
from snapexport.contract.pieces import Piece, pieces_of
from snapexport.runtime.arrays import Floats, Integers
from snapexport.runtime.engine.backend import Buffers, Collectives, GraphBackend
from snapexport.runtime.engine.decode_steps import SlotRows
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.predictions import Prediction, Predictions
from snapexport.runtime.engine.rows import Rows

Tell = Callable[[str, Sequence[Any]], None]
"""Hands a call on to the other ranks: a method's name, and its arguments."""


class RankExecutor:
    """One rank's executor. If a call fails in any rank, all of them end: they are out of step."""

    rows = parking = drafts = None

    def __init__(
        self,
        manifest: Manifest,
        graphs: GraphSet,
        backend: GraphBackend,
        weights: Buffers,
        collectives: Collectives,
        *,
        tell: Tell | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        """manifest, weights: the rank's. tell, end: of the first rank; end: end the other ranks."""
        self._collectives, self._tell, self._end = collectives, tell, end
        layout = SlotRows()
        if manifest.graph_options.data_parallel_attention:
            layout = SlotRows(collectives.rank, collectives.ranks)
        make_rows = partial(RankRows, layout, collectives)
        self._own = Executor(
            manifest, graphs, backend, weights, slot_rows=layout, make_rows=make_rows
        )
        self._has_latents = bool(manifest.model.kv_lora_rank)
        self.limits = replace(self._own.limits, ranks=collectives.ranks)
        self.role, self.backend, self.drafters = self._own.role, backend, self._own.drafters
        self.captured, self.prompt_cache = self._own.captured, self._own.prompt_cache

    def take(
        self, slot: int, prompt: Sequence[int], piece: Piece, temperature: float = 1.0
    ) -> Prediction:
        """As `Executor` does."""
        with self._together("take", slot, tuple(prompt), piece, temperature):
            return self._own.take(slot, prompt, piece, temperature)

    def prefill_prompt(
        self, slot: int, prompt: Sequence[int], temperature: float = 1.0
    ) -> Prediction:
        """As `Executor` does."""
        for piece in pieces_of(len(prompt), self.limits.prefill):
            prediction = self.take(slot, prompt, piece, temperature)
        return prediction

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Floats | None = None,
    ) -> Predictions:
        """As `Executor` does."""
        arguments = input_ids, position_ids, prompt_length, temperature
        with self._together("decode", *arguments):
            return self._own.decode(*arguments)

    def accept(self, slot: int, count: int) -> None:
        """As `Executor` does."""
        with self._together("accept", slot, count):
            self._own.accept(slot, count)

    def move(self, source: int, target: int) -> None:
        """As `Executor` does."""
        with self._together("move", source, target):
            self._own.move(source, target)

    def release(self, slot: int) -> None:
        """As `Executor` does."""
        with self._together("release", slot):
            self._own.release(slot)

    def clear(self, slot: int) -> None:
        """As `Executor` does."""
        with self._together("clear", slot):
            self._own.clear(slot)

    def compress(self, slot: int, prompt_length: int) -> None:
        """As `Executor` does."""
        with self._together("compress", slot, prompt_length):
            self._own.compress(slot, prompt_length)

    def topk_positions(self) -> list[Integers] | None:
        """What all KV heads kept: each rank has some of them. Latents have one head in each."""
        with self._together("topk_positions"):
            own = self._own.topk_positions()
            if own is None or self._has_latents:
                return own
            return [self._of_all_ranks(positions) for positions in own]

    def _of_all_ranks(self, positions: Integers) -> Integers:
        heads, kept = positions.shape
        every = np.empty((self._collectives.ranks * heads, kept), positions.dtype)
        if kept:
            self._collectives.all_gather(np.ascontiguousarray(positions), every)
        return every

    def close(self) -> None:
        """End the other ranks, and free this one's memory. A second call does nothing."""
        if self._end:
            self._end()
        self._own.close()

    @contextmanager
    def _together(self, name: str, *arguments: object) -> Iterator[None]:
        """Carry out a call in all ranks. Calls within it are made by each rank itself."""
        self._own.require_open()
        tell, self._tell = self._tell, None
        try:
            if tell:
                tell(name, arguments)
            yield
        except BaseException:  # some ranks may have done it, and others not
            self.close()
            raise
        finally:
            self._tell = tell


class RankRows(Rows):
    """The rows that one rank has of the batch slots, which move between ranks."""

    def __init__(self, layout: SlotRows, collectives: Collectives, *rows: Any) -> None:
        super().__init__(*rows)
        self._layout, self._collectives = layout, collectives

    def copy_caches(self, source: int, target: int) -> None:
        """Between ranks, if the batch slots are of two."""
        giver, taker = self._layout.owner(source), self._layout.owner(target)
        if giver == taker:
            super().copy_caches(source, target)
            return
        caches = self._caches[source] or self._caches[target] or self._caches[self._layout.rank]
        for cache in caches:
            self._collectives.hand(giver, taker, cache.host)
