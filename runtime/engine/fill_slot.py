"""Fills a batch slot of decode's caches from a prompt: by a graph, or by a copy.

Both ways rewrite the batch slot, so that nothing of its former prompt can be attended to. Reads
which positions the vote kept, by cache and by layer of the model: a layer may have several caches,
which keep different numbers of positions. Knows no request.
"""

from collections.abc import Mapping

import numpy as np

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest
from snapexport.runtime.engine.backend import Buffer, Buffers, Integers, Memory
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate
from snapexport.runtime.engine.method import Loaded


class FillByGraph:
    """Runs a graph whose cache outputs are one batch slot's: compress, or a single-shot prefill.

    Where the backend can bind rows, the graph is bound to each batch slot and writes it in place.
    Elsewhere it writes a row of its own, which is copied.
    """

    def __init__(self, loaded: Loaded, name: GraphName, given: Buffers) -> None:
        """given: inputs that exist already, such as prefill's outputs for compress.

        Of a batch slot that another rank holds, the graph runs for what the ranks exchange.
        """
        backend, entry = loaded.backend, loaded.manifest.graphs[name]
        decode, rows = loaded.decode.buffers, loaded.decode.rows()
        self._memory, own = backend.memory, backend.binds_rows
        slots = [{} if row is None else _cache_outputs(entry, decode, row) for row in rows]
        spare = {} if own and all(slots) else new_row(entry, backend.memory)
        inputs = {name: one for name, one in given.items() if not names.is_present(name)}
        buffers = allocate(backend.memory, entry, inputs | ((own and slots[0]) or spare))
        self.graph = BoundGraph(backend, name, entry, buffers)
        self._states = [_states_beside(entry, given, decode, row) for row in rows]
        self._graphs, self._copies = [self.graph] * len(slots), slots
        if own:
            others = [
                BoundGraph(backend, name, entry, buffers | (slot or spare)) for slot in slots[1:]
            ]
            self._graphs, self._copies = [self.graph, *others], [{}] * len(slots)

    def fill(self, slot: int, prompt_length: int) -> None:
        """Run the graph, which writes every position of the batch slot."""
        self.graph.arrays[names.PROMPT_LENGTH][:] = prompt_length
        self._graphs[slot].run()
        for name, target in self._copies[slot].items():
            self._memory.copy(target, self.graph.buffers[name])
        for source, target in self._states[slot]:
            self._memory.copy(target, source)


class FillByCopy:
    """Copies the prompt's positions, where nothing is compressed.

    Later positions are stale until decode writes over them.
    """

    def __init__(self, loaded: Loaded, prefill: Buffers) -> None:
        """prefill: the buffers of a graph whose caches hold the prompt."""
        self._memory, self._rows = loaded.backend.memory, loaded.decode.rows()
        decode = loaded.decode.buffers.items()
        self._caches = [(prefill[name], one) for name, one in decode if names.is_past(name)]

    def fill(self, slot: int, prompt_length: int) -> None:
        """Copy no more than the prompt."""
        if (row := self._rows[slot]) is not None:
            for source, target in self._caches:
                own = target.rows(row, row + 1)
                if names.is_state(target.name):
                    self._memory.copy(own, source)
                else:
                    self._memory.copy_positions(own, source, prompt_length)


FillSlot = FillByGraph | FillByCopy


def _cache_outputs(entry: GraphEntry, decode: Buffers, slot: int) -> Buffers:
    """A batch slot's row of decode's caches, by the names of the graph's cache outputs."""
    present = (spec.name for spec in entry.outputs if names.is_present(spec.name))
    return {name: decode[name].rows(slot, slot + 1) for name in present}


def _states_beside(
    entry: GraphEntry, given: Buffers, decode: Buffers, row: int | None
) -> list[tuple[Buffer, Buffer]]:
    """(a prompt's state, a batch slot's) of each recurrent state that the graph doesn't write."""
    written = {spec.name for spec in entry.outputs}
    return [
        (given[name], one.rows(row, row + 1))
        for name, one in decode.items()
        if row is not None and names.is_past(name) and names.is_state(name)
        if names.present_of(name) not in written
    ]


def new_row(entry: GraphEntry, memory: Memory) -> Buffers:
    """New buffers for the cache outputs, which share none with the inputs."""
    outputs = [spec for spec in entry.outputs if names.is_present(spec.name)]
    return {spec.name: memory.allocate(spec) for spec in outputs}


UNUSED = -1


def kept_of_caches(memory: Memory, buffers: Buffers, manifest: Manifest) -> list[Integers]:
    """[Hkv,K] of each cache. buffers: outputs of the compress step."""
    caches, kv_heads = manifest.geometry.slots.caches, manifest.model.kv_heads
    return [
        _kept_of_cache(memory, buffers, cache.cache, cache.count(kv_heads[cache.layer]))
        for cache in caches
    ]


def kept_of_layers(memory: Memory, buffers: Buffers, manifest: Manifest) -> list[Integers]:
    """[Hkv,K] of each layer with a cache, K being the largest of its caches.

    A head whose own cache holds a whole prompt keeps all between the sinks and the ring
    of the layer's smallest cache.
    """
    geometry, kept = manifest.geometry, kept_of_caches(memory, buffers, manifest)
    if not geometry.slots.head_groups:
        return kept
    kv_heads, widest = manifest.model.kv_heads, geometry.widest.items()
    layers = {n: np.full((kv_heads[n], one.K), UNUSED, np.int64) for n, one in widest}
    length = int(memory.read(buffers[names.PROMPT_LENGTH])[0])
    for one, shape, positions in zip(geometry.slots.caches, geometry.layers, kept, strict=True):
        heads = range(kv_heads[one.layer]) if one.heads is None else one.heads
        least = geometry.narrowest[one.layer]
        if shape.is_whole(length):
            positions = np.arange(least.L_sink, least.L_sink + least.eligible(length))[None]
        layers[one.layer][list(heads), : positions.shape[1]] = positions
    return [*layers.values()]


def _kept_of_cache(memory: Memory, buffers: Buffers, cache: int, heads: int) -> Integers:
    name = names.topk_positions(cache)
    if name not in buffers:
        return np.empty((heads, 0), np.int64)
    positions: Integers = memory.read(buffers[name])[0]
    return positions


def slot_positions(loaded: Loaded, kept: Buffers, prompt_length: int) -> Mapping[str, Integers]:
    """The position that each cache slot holds after prefill, [1,Hkv,S], by extend's input names.

    kept: outputs of the compress step.
    """
    by_cache = kept_of_caches(loaded.backend.memory, kept, loaded.manifest)
    found = dict[str, Integers]()
    geometry = loaded.manifest.geometry
    caches = zip(geometry.slots.caches, geometry.layers, by_cache, strict=True)
    for one, shape, positions in caches:
        heads = [shape.source_positions(prompt_length, row) for row in positions.tolist()]
        found[names.slot_positions(one.cache)] = np.array([heads], np.int64)
    return found
