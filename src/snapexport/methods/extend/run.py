"""Takes a prompt block by block onto a compressed row: extend.onnx.

    from the beginning     a prompt of any length, in memory that does not grow with it
    from a parked row      the tokens that follow a prompt which was taken before, such as a turn

The row has memory of its own, since decode writes to idle batch slots; the last block is followed
by a copy into the batch slot.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.pieces import BLOCK, Piece
from snapexport.methods.extend.spec import GRAPH
from snapexport.runtime.engine.backend import Buffer, Buffers
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate, write_tokens
from snapexport.runtime.engine.loaded import Loaded
from snapexport.runtime.engine.method import MethodRun
from snapexport.runtime.engine.parking import row_inputs
from snapexport.runtime.engine.predictions import FIRST, Prediction, Predictions
from snapexport.runtime.engine.rows import Row
from snapexport.runtime.engine.takers.taker import Takers


class Blocks:
    """One row, and the graphs that extend it: a block runs in the shortest that holds it."""

    def __init__(self, loaded: Loaded) -> None:
        entry, backend = loaded.manifest.graphs[GRAPH], loaded.backend
        self._memory, self._rows = backend.memory, loaded.rows
        self._row = {spec.name: self._memory.allocate(spec) for spec in row_inputs(entry)}
        after = {names.present_of(name): buffer for name, buffer in self._row.items()}
        self._copied: Buffers = {}
        if not backend.binds_rows:  # it does not write over its inputs
            outputs = {spec.name: spec for spec in entry.outputs}
            after = {name: self._memory.allocate(outputs[name]) for name in after}
            self._copied = {names.past_of(name): buffer for name, buffer in after.items()}
        given = loaded.weights | self._row | after
        self._prefill = loaded.limits.prefill
        names_of = {tokens: f"{GRAPH}.c{tokens}" for tokens in self._prefill.chunks[:-1]}
        names_of[self._prefill.chunk] = GRAPH
        self._graphs: dict[int, BoundGraph] = {}
        for tokens, name in names_of.items():
            entry = loaded.manifest.graphs[name]
            buffers = allocate(self._memory, entry, given)
            self._graphs[tokens] = BoundGraph(backend, name, entry, buffers)
        whole = self._graphs[self._prefill.chunk]
        self._length = 0
        self.hidden_states: Buffer | None = whole.buffers.get(names.HIDDEN_STATES)

    @classmethod
    def of(cls, loaded: Loaded, takers: Takers) -> "Blocks | None":
        """None where the extend graph is not loaded."""
        return cls(loaded) if GRAPH in loaded.graphs.names else None

    def resume(self, row: Row) -> None:
        """Go on from a parked row."""
        self._length = row.prompt_length
        for parked in row.buffers:
            self._memory.write(self._row[parked.name], parked.host)

    def _begin(self) -> None:
        """Go on from nothing."""
        self._length = 0
        for name, target in self._row.items():
            if names.is_past(name):
                self._memory.zero(target)
            else:
                self._memory.write(target, np.full(target.shape, -1))

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Take a block; the last one fills the batch slot.

        The prompt's last tokens are fed after every other block, and vote on it.
        """
        start, end = piece.start, piece.end
        if start == 0:
            self._begin()
        assert start == self._length and start < end
        count = end - start
        voters = self._prefill.voters if end < len(prompt) else 0
        size = self._prefill.size(count + voters)
        graph, positions = self._graphs[size], np.arange(start, start + size)
        arrays = graph.arrays
        write_tokens(arrays, [*prompt[start:end], *prompt[len(prompt) - voters :]], temperature)
        positions[count:] = -1
        arrays[names.POSITION_IDS][0] = positions
        arrays[names.CHUNK_LENGTH][:] = count + voters
        graph.run()
        for name, after in self._copied.items():
            self._memory.copy(self._row[name], after)
        self._length = end
        if piece.is_last:
            for target in self._rows.buffers(slot):
                self._memory.copy(target, self._row[target.name])
        return Predictions(graph, FIRST)[0]

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """The positions that the graph has written."""
        assert self._length == prompt_length
        positions = {name: row for name, row in self._row.items() if not names.is_past(name)}
        return {name: self._memory.read(row) for name, row in positions.items()}

    def clear(self) -> None:
        """Do nothing: a prompt begins with zeros, or with a row."""


class ExtendRun(MethodRun):
    """Blocks of a prompt are taken onto a row."""

    takers = ((BLOCK, Blocks.of),)


RUN = ExtendRun()
