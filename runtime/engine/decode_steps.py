"""Runs decode steps: one token of each batch slot, or several to check drafts.

Owns decode's buffers, among them the caches of all batch slots. Knows no prompt and no request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest
from snapexport.runtime.engine.backend import Buffer, Buffers, Floats, GraphBackend, Integers
from snapexport.runtime.engine.bound_graph import BoundGraph, Predictions, allocate
from snapexport.runtime.engine.followers import SlotFollower
from snapexport.runtime.engine.graph_set import GraphSet


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Says which row of decode's batch a batch slot is, and which rank holds its caches.

    One rank holds all batch slots, in their order. Ranks whose attention is parallel over the batch
    deal them out in turn: slot i is rank i mod N's, so that the first few slots are spread over all
    ranks. Rows of a graph are in the order of the ranks.

    rank: this one, of `ranks` that share the batch slots.
    """

    rank: int = 0
    ranks: int = 1

    def rows(self, count: int, slots: int) -> NDArray[np.int64]:
        """The rows of the first `count` batch slots in a graph of `slots` of them."""
        each, owner = divmod(np.arange(count), self.ranks)
        return owner * (slots // self.ranks) + each

    def owner(self, slot: int) -> int:
        """The rank that holds a batch slot's caches."""
        return slot % self.ranks

    def own(self, slot: int) -> int | None:
        """The row of a batch slot in this rank's caches; None: another rank holds it."""
        return slot // self.ranks if self.owner(slot) == self.rank else None


_IDLE = {names.TEMPERATURE: 1}
"""Values for the batch slots after those in use, where they aren't 0."""


class DecodeSteps:
    """buffers: inputs and outputs of decode over all batch slots; only the caches if it is not
    loaded. graphs: by the batch slots that each runs. slot_rows: where the batch slots are in them.
    """

    def __init__(
        self,
        manifest: Manifest,
        graphs: GraphSet,
        backend: GraphBackend,
        weights: Buffers,
        slot_rows: SlotRows,
    ) -> None:
        self._backend, self._weights, self._manifest = backend, weights, manifest
        self.slot_rows = slot_rows
        whole = graphs.decode[manifest.batch]
        if whole not in graphs.names:
            self.buffers = allocate(backend.memory, _caches_of(manifest.graphs[whole]), {})
        else:
            self.buffers = allocate(backend.memory, manifest.graphs[whole], weights)
        self.graphs = self._bind(graphs, graphs.decode, self.buffers)
        self._of_several = self._verify_buffers(graphs)
        self._verify = self._bind(graphs, graphs.verify, self._of_several)
        self.followers: Sequence[SlotFollower] = ()
        """Those that write inputs of each step."""

    def run(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Floats | None = None,
    ) -> Predictions:
        """Run the first n batch slots: input_ids [n], or [n,q] for q tokens of each; others [n].

        position_ids: of each first token.
        """
        count = len(input_ids)
        slots, graph = _smallest(self.graphs if input_ids.ndim == 1 else self._verify, count)
        rows = self.slot_rows.rows(count, slots)
        tokens = input_ids.reshape(count, -1)
        given = {
            names.INPUT_IDS: tokens,
            names.POSITION_IDS: position_ids[:, None] + np.arange(tokens.shape[1]),
            names.PROMPT_LENGTH: prompt_length,
            names.TEMPERATURE: 1 if temperature is None else temperature,
        }
        arrays = graph.arrays
        for name, values in given.items():
            if name in arrays:  # a graph may not use the prompt's length, or the temperature
                arrays[name][:] = _IDLE.get(name, 0)
                arrays[name][rows] = values
        for follower in self.followers:
            follower.feed(arrays)
        graph.run()
        return Predictions(graph, rows)

    def hidden_states(self, *, several: bool) -> Buffer | None:
        """The latest step's, if graphs output them: [B,1,E], or [B,q,E] of several tokens."""
        return (self._of_several if several else self.buffers).get(names.HIDDEN_STATES)

    def caches(self, slot: int) -> list[Buffer]:
        """A batch slot's row of every cache; none if another rank has them."""
        row = self.slot_rows.own(slot)
        caches = [one for name, one in self.buffers.items() if names.is_past(name)]
        return [] if row is None else [cache.rows(row, row + 1) for cache in caches]

    def rows(self) -> list[int | None]:
        """The row of each batch slot in this rank's caches; None: another rank holds it."""
        return [self.slot_rows.own(slot) for slot in range(self._manifest.batch)]

    def close(self) -> None:
        """Let go of the graphs."""
        self.graphs.clear()
        self._verify.clear()

    def capture(self) -> list[bool]:
        """Make each step a single launch, where the device can; say of each whether it does."""
        return [graph.capture() for graph in (*self.graphs.values(), *self._verify.values())]

    def _verify_buffers(self, graphs: GraphSet) -> Buffers:
        """New ones for tokens and logits; those of decode for whatever is shaped alike."""
        if not graphs.verify or graphs.role == "prefill":
            return {}
        entry = self._manifest.graphs[graphs.verify[self._manifest.batch]]
        alike = {
            spec.name: self.buffers[spec.name]
            for spec in (*entry.inputs, *entry.outputs)
            if spec.name in self.buffers and self.buffers[spec.name].shape == tuple(spec.shape)
        }
        return allocate(self._backend.memory, entry, self._weights | alike)

    def _bind(
        self, graphs: GraphSet, chosen: dict[int, GraphName], whole: Buffers
    ) -> dict[int, BoundGraph]:
        """The graphs that are loaded, over the first rows of the buffers."""
        return {
            count: BoundGraph(
                self._backend,
                name,
                self._manifest.graphs[name],
                {key: self._first(key, one, count) for key, one in whole.items()} | self._weights,
            )
            for count, name in chosen.items()
            if name in graphs.names
        }

    def _first(self, name: str, buffer: Buffer, slots: int) -> Buffer:
        """The part of a buffer that a step of the first batch slots reads and writes."""
        if name == names.RANK:
            buffer.host[:] = self.slot_rows.rank
            return buffer
        is_own = names.is_cache(name) or names.is_attended(name)
        return buffer.rows(0, slots // self.slot_rows.ranks if is_own else slots)


def _smallest(graphs: dict[int, BoundGraph], count: int) -> tuple[int, BoundGraph]:
    return next((slots, graph) for slots, graph in graphs.items() if slots >= count)


def _caches_of(entry: GraphEntry) -> GraphEntry:
    caches = [spec for spec in (*entry.inputs, *entry.outputs) if names.is_cache(spec.name)]
    return entry.model_copy(update={"inputs": caches, "outputs": []})
