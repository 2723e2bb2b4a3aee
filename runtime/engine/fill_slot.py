"""Fills a batch slot of decode's caches from a prompt: by a graph, or by a copy.

Knows no request. Both ways rewrite the batch slot, so that nothing of its former prompt can be
attended to.
"""

from collections.abc import Sequence

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.runtime.engine.backend import Buffer, Buffers, GraphBackend, Memory
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate
from snapexport.runtime.engine.loaded import Loaded


class FillByGraph:
    """Runs a graph whose cache outputs are one batch slot's: compress, or a single-shot prefill.

    Where the backend can bind rows, the graph is bound to each batch slot and writes it in place.
    Elsewhere it writes a row of its own, which is copied.
    """

    def __init__(
        self,
        backend: GraphBackend,
        name: GraphName,
        entry: GraphEntry,
        given: Buffers,
        decode: Buffers,
        rows: Sequence[int | None],
    ) -> None:
        """given: inputs that exist already, such as prefill's outputs for compress. rows: of each
        batch slot, its row in decode's caches; None: another rank holds it, and the graph runs for
        what the ranks exchange.
        """
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

    @classmethod
    def of(cls, loaded: Loaded, name: GraphName, given: Buffers) -> "FillByGraph":
        """Of a graph of a build."""
        entry, decode = loaded.manifest.graphs[name], loaded.decode
        return cls(loaded.backend, name, entry, given, decode.buffers, decode.rows())

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

    def __init__(
        self, memory: Memory, prefill: Buffers, decode: Buffers, rows: Sequence[int | None]
    ) -> None:
        """rows: as in `FillByGraph`."""
        self._memory, self._rows = memory, rows
        self._caches = [(prefill[name], one) for name, one in decode.items() if names.is_past(name)]

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
