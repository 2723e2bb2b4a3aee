"""Binds the graphs that take a prompt into a batch slot: prefill, the compress step, and votes.

Knows no request, and nothing that a batch slot holds.
"""

from collections.abc import Sequence

from snapexport.contract.manifest import GraphName, Manifest
from snapexport.runtime.engine.backend import Buffers, GraphBackend
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate
from snapexport.runtime.engine.fill_slot import FillByCopy, FillByGraph, FillSlot
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.prefill import Chunked, Prefill, SingleShot
from snapexport.runtime.engine.prompt_cache import PromptCache
from snapexport.runtime.engine.repetition import Repetition


class PromptGraphs:
    """prefill: takes a prompt's chunks. into_slot: fills a batch slot. cache: of the prompt; None
    where a single shot needs none. kept: where the kept positions are after a prompt.
    """

    def __init__(
        self,
        manifest: Manifest,
        graphs: GraphSet,
        backend: GraphBackend,
        weights: Buffers,
        decode: Buffers,
        rows: Sequence[int | None],
        cache: PromptCache | None,
    ) -> None:
        """decode: its caches. rows: of each batch slot, as in `FillByGraph`. cache: another
        executor's; None for a new one."""
        self._manifest, self._backend, self._decode = manifest, backend, decode
        self._weights, self._rows = weights, rows
        self.cache = cache
        self.kept: Buffers = {}
        self.into_slot: FillSlot
        self.prefill = self._single_shot(graphs) if manifest.single_shot else self._chunked(graphs)

    def _single_shot(self, graphs: GraphSet) -> Prefill:
        *_, name = graphs.prefill.values()
        return SingleShot(self._fill_by_graph(name, self._weights))

    def _chunked(self, graphs: GraphSet) -> Prefill:
        *_, name = graphs.prefill.values()
        memory, entry = self._backend.memory, self._manifest.graphs[name]
        cache = self.cache = self.cache or PromptCache(memory, entry)
        whole = allocate(memory, entry, self._weights | cache.buffers | cache.outputs(entry))
        bound = {
            capacity: self._bind(name, whole | cache.of_capacity(capacity))
            for capacity, name in graphs.prefill.items()
        }
        repetition = None
        if graphs.vote:
            entry = self._manifest.graphs[graphs.vote]
            held_whole = self._manifest.geometry.held_whole
            repetition = Repetition(self._backend, entry, whole, held_whole)
            whole |= repetition.votes
        if graphs.compress:
            self._fill_by_graph(graphs.compress, whole)
        else:
            self.into_slot = FillByCopy(memory, whole, self._decode, self._rows)
        return Chunked(bound, cache, self.into_slot, repetition)

    def _fill_by_graph(self, name: GraphName, given: Buffers) -> FillByGraph:
        entry = self._manifest.graphs[name]
        into_slot = FillByGraph(self._backend, name, entry, given, self._decode, self._rows)
        self.into_slot, self.kept = into_slot, into_slot.graph.buffers
        return into_slot

    def _bind(self, name: GraphName, buffers: Buffers) -> BoundGraph:
        entry = self._manifest.graphs[name]
        return BoundGraph(self._backend, name, entry, buffers | self._weights)
