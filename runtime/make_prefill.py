"""Ties the graphs that take prompts to their buffers: prefill, compress, and vote where it exists.

Knows no request.
"""

from collections.abc import Sequence

from snapexport.contract.manifest import GraphName, Manifest
from snapexport.runtime.backend import Buffers, GraphBackend
from snapexport.runtime.bound_graph import BoundGraph, allocate
from snapexport.runtime.fill_slot import FillByCopy, FillByGraph, FillSlot
from snapexport.runtime.graph_set import GraphSet
from snapexport.runtime.prefill import Chunked, Prefill, SingleShot
from snapexport.runtime.prompt_cache import PromptCache
from snapexport.runtime.repetition import Repetition


def make_prefill(
    manifest: Manifest,
    graphs: GraphSet,
    backend: GraphBackend,
    weights: Buffers,
    cache: PromptCache | None,
    decode: Buffers,
    rows: Sequence[int | None],
) -> Prefill:
    """cache: None for a single shot. decode, rows: as `FillByGraph` takes them."""

    def fill_by_graph(name: GraphName, given: Buffers) -> FillByGraph:
        return FillByGraph(backend, name, manifest.graphs[name], given, decode, rows)

    *_, name = graphs.prefill.values()
    if manifest.single_shot:
        return SingleShot(fill_by_graph(name, weights))
    assert cache, "chunks go into a prompt cache"
    entry = manifest.graphs[name]
    whole = allocate(backend.memory, entry, weights | cache.buffers | cache.outputs(entry))
    bound = {
        capacity: BoundGraph(
            backend, name, manifest.graphs[name], whole | cache.of_capacity(capacity) | weights
        )
        for capacity, name in graphs.prefill.items()
    }
    repetition = None
    if graphs.vote:
        repetition = Repetition(backend, manifest.graphs[graphs.vote], whole)
        whole |= repetition.votes
    into_slot: FillSlot
    if graphs.compress:
        into_slot = fill_by_graph(graphs.compress, whole)
    else:
        into_slot = FillByCopy(backend.memory, whole, decode, rows)
    return Chunked(bound, cache, into_slot, repetition)
