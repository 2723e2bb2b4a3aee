"""Makes all ranks of a build do what the first one is asked to.

Each rank has an executor of its own, over its own part of the weights and caches. The first one
tells the others each call before it carries it out itself; they exchange tensors while graphs run.
What a graph says about the next token is the same in every rank.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffer, Buffers, GraphBackend
from snapexport.runtime.engine.blocks import ParkedRow
from snapexport.runtime.engine.decode_steps import Integers, Temperatures
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.hand_over import Row
from snapexport.runtime.engine.predictions import Prediction, Predictions
from snapexport.runtime.engine.slot_rows import SlotRows
from snapexport.runtime.ranks.collectives import Collectives

Tell = Callable[[str, Sequence[Any]], None]
"""Tells the other ranks a call: a method's name, and its arguments."""


class RankExecutor(Executor):
    """One rank's executor. If a call fails in any rank, all of them end: they are out of step."""

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
        rows = SlotRows()
        if manifest.graph_options.data_parallel_attention:
            rows = SlotRows(collectives.rank, collectives.ranks)
        super().__init__(manifest, graphs, backend, weights, slot_rows=rows)

    def prefill(
        self, slot: int, prompt: Sequence[int], start: int, end: int, temperature: float = 1.0
    ) -> Prediction:
        with self._together("prefill", slot, tuple(prompt), start, end, temperature):
            return super().prefill(slot, prompt, start, end, temperature)

    def extend(
        self,
        slot: int,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float = 1.0,
        parked: ParkedRow | None = None,
    ) -> Prediction:
        if parked is not None:
            _refuse("parked rows")
        with self._together("extend", slot, tuple(prompt), start, end, temperature):
            return super().extend(slot, prompt, start, end, temperature)

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Temperatures | None = None,
    ) -> Predictions:
        arguments = input_ids, position_ids, prompt_length, temperature
        with self._together("decode", *arguments):
            return super().decode(*arguments)

    def draft(
        self, input_ids: Integers, position_ids: Integers, prompt_length: Integers
    ) -> Integers:
        _refuse("multi-token prediction")

    def repeat(self, slot: int, prompt: Sequence[int], index: int) -> Prediction:
        _refuse("the repetition of a prompt")

    def accept(self, slot: int, count: int) -> None:
        with self._together("accept", slot, count):
            super().accept(slot, count)

    def move(self, source: int, target: int) -> None:
        with self._together("move", source, target):
            super().move(source, target)

    def _copy_row(self, source: int, target: int) -> None:
        """Between ranks, if the batch slots are of two."""
        rows = self._decode.slot_rows
        giver, taker = rows.owner(source), rows.owner(target)
        if giver == taker:
            super()._copy_row(source, target)
            return
        for one in self._rows[source] or self._rows[target] or self._rows[rows.rank]:
            self._collectives.hand(giver, taker, one.host)

    def clear(self, slot: int) -> None:
        with self._together("clear", slot):
            super().clear(slot)

    def release(self, slot: int) -> None:
        with self._together("release", slot):
            super().release(slot)

    def compress(self, slot: int, prompt_length: int) -> None:
        with self._together("compress", slot, prompt_length):
            super().compress(slot, prompt_length)

    def topk_positions(self) -> list[Integers] | None:
        """What all KV heads kept: each rank has some of them. Latents have one head in each."""
        with self._together("topk_positions"):
            own = super().topk_positions()
            if own is None or self._manifest.model.kv_lora_rank:
                return own
            return [self._of_all_ranks(positions) for positions in own]

    def _of_all_ranks(self, positions: Integers) -> Integers:
        heads, kept = positions.shape
        every = np.empty((self._collectives.ranks * heads, kept), positions.dtype)
        if kept:
            self._collectives.all_gather(np.ascontiguousarray(positions), every)
        return every

    def park(self, slot: int, prompt: Sequence[int], *, in_blocks: bool) -> ParkedRow:
        _refuse("parked rows")

    def export_row(self, slot: int) -> Row:
        _refuse("handing a prompt over")

    def adopt_row(self, slot: int, row: Row) -> None:
        _refuse("handing a prompt over")

    def row_buffers(self, slot: int) -> tuple[Buffer, ...]:
        _refuse("handing a prompt over")

    def new_row(self) -> tuple[Buffer, ...]:
        _refuse("handing a prompt over")

    def close(self) -> None:
        """End the other ranks, and free this one's memory. A second call does nothing."""
        if self._end:
            self._end()
        super().close()

    @contextmanager
    def _together(self, name: str, *arguments: object) -> Iterator[None]:
        """Carry out a call in all ranks. Calls within it are made by each rank itself."""
        self._require_open()
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


def _refuse(what: str) -> NoReturn:
    raise UserError(
        f"{what} is not supported for a build with --tensor-parallel, whose rows lie in several "
        "processes",
        "build it again without --tensor-parallel",
    )
