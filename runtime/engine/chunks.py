"""Takes a chunk at a time into the prompt cache, which fills the batch slot at the end.

Work that follows a prompt's chunks, such as another vote, runs more tokens after those in the cache
(`append`) and then fills the batch slot (`fill`). Where a chunk is a whole prompt, a single run
writes the batch slot.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.contract.pieces import InnerChunks, Piece
from snapexport.methods import table
from snapexport.runtime.engine.backend import Buffer, Buffers
from snapexport.runtime.engine.bound_graph import (
    FIRST,
    BoundGraph,
    Prediction,
    Predictions,
    allocate,
    write_tokens,
)
from snapexport.runtime.engine.fill_slot import FillByCopy, FillByGraph, FillSlot, slot_positions
from snapexport.runtime.engine.method import Loaded, Takers
from snapexport.runtime.engine.prompt_cache import PromptCache


class Chunks:
    """A chunk runs in the shortest graph that holds it, of the smallest capacity that holds the
    prompt so far.

    Inside a prompt it may run in a graph of its own (`InnerChunks`).

    buffers: of the largest one, whose cache fills batch slots. kept: where the vote's positions are
    after a prompt; empty if nothing is compressed.
    """

    def __init__(self, loaded: Loaded) -> None:
        *_, (self._largest, name) = loaded.graphs.prefill.items()
        memory, entry = loaded.backend.memory, loaded.manifest.graphs[name]
        cache = self.cache = _prompt_cache(loaded, entry)
        self._loaded = loaded
        given = loaded.weights | cache.buffers | cache.outputs(entry)
        self.buffers = allocate(memory, entry, given)
        self._prefill = loaded.limits.prefill
        self._graphs = {self._prefill.chunk: self._bind_each(loaded.graphs.prefill)}
        for tokens in self._prefill.chunks[:-1]:
            self._graphs[tokens] = self._bind_each(loaded.manifest.prefill_graphs(tokens=tokens))
        self._inner = self._bind_inner(cache.inner) if cache.inner else None
        self.kept: Buffers = {}
        self._into_slot = self._fill_slot()
        graph = self._whole
        self._no_logits = np.zeros_like(graph.arrays[names.LOGITS][0])
        self._outputs = frozenset((name, buffer.shape) for name, buffer in graph.buffers.items())
        self._is_tempered = names.TEMPERATURE in graph.arrays
        self.hidden_states: Buffer | None = None
        self._after_prompt: Prediction | None = None
        self._unfilled: tuple[int, int] | None = None
        """The batch slot that the last prompt has yet to fill, and the prompt's length."""

    @property
    def _whole(self) -> BoundGraph:
        """The graph of whole chunks and the largest capacity. All write the same outputs."""
        return self._graphs[self._prefill.chunk][self._largest]

    def _bind_each(self, graphs: Mapping[int, GraphName]) -> dict[int, BoundGraph]:
        """Graphs for chunks of one length, by capacity. Short ones have tokens of their own."""
        bound: dict[int, BoundGraph] = {}
        for capacity, name in graphs.items():
            entry = self._loaded.manifest.graphs[name]
            given = self.buffers | self.cache.of_capacity(capacity)
            if graph_of(name).tokens:
                del given[names.INPUT_IDS]
            bound[capacity] = self._bind(name, allocate(self._loaded.backend.memory, entry, given))
        return bound

    def _bind(self, name: GraphName, buffers: Buffers) -> BoundGraph:
        entry = self._loaded.manifest.graphs[name]
        return BoundGraph(self._loaded.backend, name, entry, buffers | self._loaded.weights)

    def _bind_inner(self, inner: InnerChunks) -> BoundGraph:
        entry = self._loaded.manifest.graphs[inner.graph]
        buffers = allocate(self._loaded.backend.memory, entry, self.buffers)
        pasts = {name: one for name, one in buffers.items() if names.is_past(name)}
        self.cache.add({name: one for name, one in pasts.items() if name not in self.buffers})
        return self._bind(inner.graph, buffers)

    def _fill_slot(self) -> FillSlot:
        loaded = self._loaded
        if "compress" not in loaded.graphs.names:
            return FillByCopy(loaded, self.buffers)
        by_graph = FillByGraph(loaded, "compress", self.buffers)
        self.kept = by_graph.graph.buffers
        return by_graph

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Run a chunk; the prompt's last piece leaves the batch slot to be filled.

        A chunk that is in the cache already gives zeros, and so does an inner one: nobody reads
        logits inside a prompt. Nothing is run for the last prompt's tokens.
        """
        is_end, given = piece.end == len(prompt), temperature if self._is_tempered else None
        is_finished = self.cache.is_finished(prompt, given, self._outputs)
        tokens = prompt[piece.start : piece.end]
        self.hidden_states = None
        if not is_end and (is_finished or self.cache.holds(tokens, piece.start)):
            return Prediction(lambda: self._no_logits)
        inner = None if is_end else self._inner_at(piece.start)
        if inner:
            self._run_inner(inner, tokens, piece.start)
        elif not is_finished:
            self._run(tokens, piece.start, temperature)
        if not is_finished:
            self.cache.wrote(prompt, piece.start, piece.end, given, self._outputs)
            self.hidden_states = self._whole.buffers.get(names.HIDDEN_STATES)
        if inner:
            return Prediction(lambda: self._no_logits)
        prediction = Predictions(self._whole, FIRST)[0]
        if piece.is_last:
            self._unfilled, self.cache.reader = (slot, len(prompt)), self.fill_slot
        elif is_end:
            self._after_prompt = prediction = prediction.copy()
        return prediction

    @property
    def after_prompt(self) -> Prediction:
        """The prediction of the token after the prompt, for work that follows its chunks."""
        assert self._after_prompt, "the prompt's chunks were run before"
        return self._after_prompt

    def append(
        self, prompt: tuple[int, ...], tokens: Sequence[int], *, whole_cache: bool
    ) -> Prediction:
        """Run a chunk that ends with tokens that follow the prompt in the cache.

        It computes the prompt's end again before them if there are fewer than a chunk. whole_cache:
        in the graph of the largest capacity, whose cache other graphs read.
        """
        whole = (*prompt, *tokens)
        start = max(0, len(whole) - self._prefill.chunk)
        self._run(whole[start:], start, 1.0, self._largest if whole_cache else 0)
        given = 1.0 if self._is_tempered else None
        self.cache.wrote(whole, start, len(whole), given, self._outputs)
        return Predictions(self._whole, FIRST)[0]

    def fill_slot(self) -> None:
        """Fill the batch slot that the last prompt has yet to fill, if any."""
        if left := self._unfilled:
            self.leave_unfilled()
            self.fill(*left, left[1])

    def leave_unfilled(self, slot: int | None = None) -> None:
        """Nobody needs what the last prompt would fill: this batch slot; None: whichever it is."""
        if self._unfilled and slot in (None, self._unfilled[0]):
            self._unfilled = None

    def fill(self, slot: int, prompt_length: int, count: int) -> None:
        """Fill the batch slot. count: tokens in the cache, the prompt's and those after it."""
        self.cache.resize(self._largest, count)
        self.refill(slot, prompt_length)

    def refill(self, slot: int, prompt_length: int) -> None:
        """Compress into the batch slot, or copy where nothing is compressed."""
        self._into_slot.fill(slot, prompt_length)

    def _run(
        self, tokens: Sequence[int], start: int, temperature: float, capacity: int = 0
    ) -> None:
        """capacity: of the graph; 0: the smallest one that suffices."""
        size = self._prefill.size(len(tokens))
        graphs = self._graphs[size]
        capacity = capacity or next(one for one in graphs if one >= start + size)
        self.cache.resize(capacity, start)
        if not start:
            self.cache.begin()
        graph = graphs[capacity]
        write_tokens(graph.arrays, tokens, temperature)
        graph.arrays[names.PAST_LENGTH][:] = start
        graph.arrays[names.CHUNK_LENGTH][:] = len(tokens)
        graph.run()

    def _inner_at(self, start: int) -> BoundGraph | None:
        """The graph of a chunk inside a prompt, if it has one of its own."""
        inner = self.cache.inner
        return self._inner if inner and inner.takes(start) else None

    def _run_inner(self, graph: BoundGraph, tokens: Sequence[int], start: int) -> None:
        self.cache.resize(self._largest, start)
        write_tokens(graph.arrays, tokens, 1.0)
        graph.arrays[names.PAST_LENGTH][:] = start
        graph.run()

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """The ring's by the prompt's length, the others as the vote kept them."""
        self.fill_slot()
        return slot_positions(self._loaded, self.kept, prompt_length)

    def clear(self) -> None:
        """Clear the prompt cache."""
        self.cache.clear()


def _prompt_cache(loaded: Loaded, entry: GraphEntry) -> PromptCache:
    """Another executor's, unless inner chunks or fewer bits make the caches of one differ."""
    manifest, shared = loaded.manifest, loaded.prompt_cache
    inner = table.inner_chunks(manifest.graph_options, manifest.prefill_chunk)
    if inner and inner.graph not in loaded.graphs.names:
        inner = None
    if shared and not (shared.inner or inner) and shared.suits(entry):
        return shared
    return PromptCache(loaded.backend.memory, entry, inner)


class SingleShot:
    """Takes a whole padded prompt in one run, where a chunk is as long as the longest prompt."""

    cache = None

    def __init__(self, loaded: Loaded) -> None:
        *_, name = loaded.graphs.prefill.values()
        self._loaded = loaded
        self._into_slot = FillByGraph(loaded, name, loaded.weights)
        self.kept: Buffers = self._into_slot.graph.buffers
        self.hidden_states: Buffer | None = self.kept.get(names.HIDDEN_STATES)

    def take(
        self, slot: int, prompt: tuple[int, ...], piece: Piece, temperature: float
    ) -> Prediction:
        """Fill the batch slot; the prediction is of the token after the prompt."""
        assert piece.is_last and len(prompt) == piece.end
        write_tokens(self._into_slot.graph.arrays, prompt, temperature)
        self.refill(slot, len(prompt))
        return Predictions(self._into_slot.graph, FIRST)[0]

    def refill(self, slot: int, prompt_length: int) -> None:
        """Run the last prompt again: compression is a part of it."""
        self._into_slot.fill(slot, prompt_length)

    def leave_unfilled(self, slot: int | None = None) -> None:
        """Do nothing: the run that took the prompt has filled its batch slot."""

    def slot_positions(self, prompt_length: int) -> Mapping[str, NDArray[Any]]:
        """The ring's by the prompt's length, the others as the vote kept them."""
        return slot_positions(self._loaded, self.kept, prompt_length)

    def clear(self) -> None:
        """Do nothing: there is no cache but the batch slot's."""


def make_chunks(loaded: Loaded, takers: Takers) -> Chunks | SingleShot | None:
    """Chunks, or a single shot where a chunk is a whole prompt."""
    if not loaded.graphs.prefill:
        return None
    return SingleShot(loaded) if loaded.manifest.single_shot else Chunks(loaded)
