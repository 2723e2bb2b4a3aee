"""Makes all ranks of a build do what the first one is asked to.

Each rank has an executor of its own, over its own part of the weights and caches. The first one
passes each call on to the others before it carries it out itself; they exchange tensors while
graphs run. What a graph says about the next token is the same in every rank.

Rows are in several processes: none is handed over or parked, and no graph drafts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import Manifest
from snapexport.contract.pieces import Piece
from snapexport.runtime.engine.backend import (
    Buffers,
    Collectives,
    Floats,
    GraphBackend,
    Integers,
)
from snapexport.runtime.engine.decode_steps import SlotRows
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.rows import Rows

Pass = Callable[[str, Sequence[Any], Mapping[str, Any]], None]
"""Passes a call on to the other ranks: a method's name, and its arguments."""

P = ParamSpec("P")
T = TypeVar("T")


def _by_all_ranks(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """The method of `Executor`, which all ranks carry out together."""

    @wraps(method)
    def together(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._together(method.__name__, *args, **kwargs):
            return method(self, *args, **kwargs)

    return together


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
        pass_on: Pass | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        """manifest, weights: the rank's. pass_on, end: of the first rank; end: end the others."""
        layout = SlotRows()
        if manifest.graph_options.data_parallel_attention:
            layout = SlotRows(collectives.rank, collectives.ranks)
        make_rows = partial(RankRows, layout, collectives)
        super().__init__(manifest, graphs, backend, weights, slot_rows=layout, make_rows=make_rows)
        self._collectives, self._pass_on, self._end = collectives, pass_on, end
        self._has_latents = bool(manifest.model.kv_lora_rank)
        self.limits = replace(self.limits, ranks=collectives.ranks)
        self.parking = self.drafts = None

    take = _by_all_ranks(Executor.take)
    fill_slot = _by_all_ranks(Executor.fill_slot)
    decode = _by_all_ranks(Executor.decode)
    accept = _by_all_ranks(Executor.accept)
    move = _by_all_ranks(Executor.move)
    release = _by_all_ranks(Executor.release)
    clear = _by_all_ranks(Executor.clear)
    forget_prompt = _by_all_ranks(Executor.forget_prompt)
    compress = _by_all_ranks(Executor.compress)

    def topk_positions(self) -> list[Integers] | None:
        """The positions that all KV heads kept. Each rank has some heads, or the one of latents."""
        with self._together("topk_positions"):
            own = super().topk_positions()
            if own is None or self._has_latents:
                return own
            return [self._of_all_ranks(positions) for positions in own]

    def held_shares(self, last: Piece, prompt_length: int) -> Floats:
        """The share of all ranks' KV heads, of which each rank has as many."""
        with self._together("held_shares", last, prompt_length):
            own = super().held_shares(last, prompt_length)
            mean: Floats = self._of_all_ranks(own[None]).mean(0)
            return mean

    def _of_all_ranks(self, positions: NDArray[Any]) -> NDArray[Any]:
        heads, kept = positions.shape
        every = np.empty((self._collectives.ranks * heads, kept), positions.dtype)
        if kept:
            self._collectives.all_gather(np.ascontiguousarray(positions), every)
        return every

    def close(self) -> None:
        """End the other ranks, and free this one's memory. A second call does nothing."""
        if self._end:
            self._end()
        super().close()

    @contextmanager
    def _together(self, name: str, *args: object, **kwargs: object) -> Iterator[None]:
        """Carry out a call in all ranks. Calls within it are made by each rank itself."""
        self.require_open()
        pass_on, self._pass_on = self._pass_on, None
        try:
            if pass_on:
                pass_on(name, args, kwargs)
            yield
        except BaseException:  # some ranks may have done it, and others not
            self.close()
            raise
        finally:
            self._pass_on = pass_on


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
