"""Takes a prompt block by block onto a compressed row: extend.onnx.

    from the beginning     a prompt of any length, in memory that does not grow with it
    from a parked row      the tokens that follow a prompt which was taken before, such as a turn

The row is a place of its own, since decode writes to idle batch slots; the last block is followed
by a copy into the batch slot. Knows no request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import GraphEntry, Manifest, TensorSpec
from snapexport.runtime.engine.backend import Buffer, Buffers, GraphBackend
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate
from snapexport.runtime.engine.predictions import FIRST, Prediction, Predictions
from snapexport.runtime.engine.prefill import write_tokens

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ParkedRow:
    """A prompt's compressed caches, with the position in each cache slot, before any decode step.

    token_ids: the prompt. states: in the host's memory, by the names of extend's inputs. session:
    whose requests may go on from it.
    """

    token_ids: tuple[int, ...]
    states: Mapping[str, NDArray[Any]]
    session: str = ""

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What it is found by."""
        return self.session, self.token_ids

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(one.nbytes for one in self.states.values())


class Blocks:
    """One row, and the graph that extends it."""

    def __init__(
        self,
        backend: GraphBackend,
        entry: GraphEntry,
        given: Buffers,
        slots: Sequence[Sequence[Buffer]],
        geometry: CacheGeometry,
    ) -> None:
        """given: inputs that exist already. slots: decode's caches, of each batch slot."""
        self._memory, self._geometry = backend.memory, geometry
        self._slots = [{one.name: one for one in caches} for caches in slots]
        specs = {spec.name: spec for spec in entry.inputs}
        self._row = {spec.name: self._memory.allocate(spec) for spec in _states(entry)}
        after = {names.present_of(name): one for name, one in self._row.items()}
        self._copied: Buffers = {}
        if not backend.binds_rows:  # it does not write over its inputs
            outputs = {spec.name: spec for spec in entry.outputs}
            after = {name: self._memory.allocate(outputs[name]) for name in after}
            self._copied = {names.past_of(name): one for name, one in after.items()}
        buffers = allocate(self._memory, entry, given | self._row | after)
        self._graph = BoundGraph(backend, "extend", entry, buffers)
        self._chunk: int = specs[names.INPUT_IDS].shape[1]
        self._voters = geometry.block_voters(self._chunk)
        self._length = 0

    def begin(self, parked: ParkedRow | None) -> None:
        """Go on from a parked row, or from nothing."""
        self._length = len(parked.token_ids) if parked else 0
        for name, target in self._row.items():
            if parked:
                self._memory.write(target, parked.states[name])
            elif names.is_past(name):
                self._memory.zero(target)
            else:
                self._memory.write(target, np.full(target.shape, -1))

    def run(
        self, slot: int, prompt: Sequence[int], start: int, end: int, temperature: float
    ) -> Prediction:
        """Take the tokens at positions [start, end); the prompt's last ones fill the batch slot.

        The prompt's last tokens are fed behind every other block, and vote on it.
        """
        assert start == self._length and start < end
        arrays, count = self._graph.arrays, end - start
        positions = np.arange(start, start + self._chunk)
        voters = self._voters if end < len(prompt) else 0
        write_tokens(arrays, [*prompt[start:end], *prompt[len(prompt) - voters :]], temperature)
        positions[count:] = -1
        arrays[names.POSITION_IDS][0] = positions
        arrays[names.CHUNK_LENGTH][:] = count + voters
        self._graph.run()
        for name, after in self._copied.items():
            self._memory.copy(self._row[name], after)
        self._length = end
        if end == len(prompt):
            for name, target in self._slots[slot].items():
                self._memory.copy(target, self._row[name])
        return Predictions(self._graph, FIRST)[0]

    @property
    def hidden_states(self) -> Buffer | None:
        """Of the latest block, [1,C,E], of a build with --mtp."""
        return self._graph.buffers.get(names.HIDDEN_STATES)

    def parked(self, prompt: Sequence[int]) -> ParkedRow:
        """A copy of the row after a prompt's last block."""
        assert self._length == len(prompt)
        states = {name: self._memory.read(one) for name, one in self._row.items()}
        return ParkedRow(tuple(prompt), states)

    def parked_from_slot(
        self, slot: int, prompt: Sequence[int], kept: Sequence[Integers]
    ) -> ParkedRow:
        """A copy of what prefill left in a batch slot. kept: `topk_positions` of each cache."""
        states = {name: self._memory.read(one) for name, one in self._slots[slot].items()}
        for layer, (shape, positions) in enumerate(zip(self._geometry.layers, kept, strict=True)):
            window = np.array(shape.source_positions(len(prompt)), np.int64)
            every = np.broadcast_to(window, (len(positions), len(window)))
            held = np.concatenate([every, positions], axis=1)
            states[names.slot_positions(layer)] = held[None]
        return ParkedRow(tuple(prompt), states)


def row_states(manifest: Manifest) -> list[TensorSpec]:
    """What a parked row of a build with extend.onnx consists of."""
    return _states(manifest.graphs["extend"])


def _states(entry: GraphEntry) -> list[TensorSpec]:
    """The inputs that are part of the row: an output takes the place of each."""
    return [spec for spec in entry.inputs if names.present_of(spec.name) != spec.name]
