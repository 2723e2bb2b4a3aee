"""Runs a build's prefill, compress and decode graphs, and owns their caches.

The caches are decode's, with a row for each batch slot, and the prompt cache where prefill goes
chunk by chunk. They are allocated once and written in place. Callers name batch slots and never see
a key or a value. Knows no library, no request and no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import BASELINE, GraphEntry, GraphName, Manifest
from snapexport.runtime.backend import Buffer, Buffers, DeviceError, GraphBackend
from snapexport.runtime.blocks import Blocks, ParkedRow
from snapexport.runtime.bound_graph import BoundGraph, allocate
from snapexport.runtime.decode_inputs import Integers, Temperatures, write_decode_inputs
from snapexport.runtime.fill_slot import FillByCopy, FillByGraph, FillSlot
from snapexport.runtime.predictions import Prediction, Predictions
from snapexport.runtime.prefill import Chunked, Prefill, SingleShot
from snapexport.runtime.prompt_cache import PromptCache

PrefillForm = Literal["chunks", "blocks", "both"]
"""chunks: into a cache of full length, which is then compressed. blocks: onto a compressed row.
both: chunks where the prompt is neither too long nor begins with a parked row."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an executor can take.

    batch: batch slots. decode_batches: how many of the first batch slots a decode step can run,
    ascending; the last is `batch`. A step of fewer costs as much as the next of these.
    longest_prefill: tokens that prefill takes; longer prompts go block by block onto a compressed
    row. longest_prompt: tokens of a prompt. positions: tokens are fed at positions below it.
    """

    batch: int
    decode_batches: tuple[int, ...]
    prefill_chunk: int
    longest_prefill: int
    longest_prompt: int
    positions: int
    vocab_size: int
    eos_token_id: frozenset[int]

    @classmethod
    def of(
        cls, manifest: Manifest, *, full_cache: bool, prefill: PrefillForm = "chunks"
    ) -> "Limits":
        """A full cache ends at L_max; a compressed one goes on to the model's own limit."""
        L_max, model = manifest.geometry.L_max, manifest.model
        longest = min(L_max, model.max_position_embeddings)
        positions = longest if full_cache else model.max_position_embeddings
        return cls(
            batch=manifest.batch,
            decode_batches=tuple(manifest.decode_graphs()),
            prefill_chunk=manifest.prefill_chunk,
            longest_prefill=0 if prefill == "blocks" else longest,
            longest_prompt=longest if prefill == "chunks" else positions,
            positions=positions,
            vocab_size=model.vocab_size,
            eos_token_id=frozenset(model.eos_token_id),
        )


@dataclass(frozen=True, slots=True)
class GraphSet:
    """The graphs of a build that one executor runs: the compressed cache's, or the full cache's.

    prefill: by the positions of each one's cache, ascending; none where all prompts go block by
    block. decode: by the batch slots that each runs, ascending. compress: None where prefill does
    it, or where nothing is compressed. extend: None where no prompt goes block by block.
    """

    prefill: dict[int, GraphName]
    compress: GraphName | None
    decode: dict[int, GraphName]
    full_cache: bool
    extend: GraphName | None = None

    @classmethod
    def of(cls, build: Build, *, baseline: bool, prefill: PrefillForm = "chunks") -> "GraphSet":
        """baseline: the uncompressed graphs. Raises UserError where the build lacks a graph.

        A build of the full cache is its own baseline.
        """
        extend = _extend_of(build, baseline, prefill)
        manifest, compresses = build.manifest, build.manifest.geometry.compresses
        if baseline and compresses and not build.has_baseline:
            raise UserError(
                f"{build.directory} has no baseline graphs", "build it again with --baseline"
            )
        prefix = BASELINE if baseline and build.has_baseline else ""
        full_cache = baseline or not compresses
        none = full_cache or manifest.single_shot or prefill == "blocks"
        return cls(
            prefill={} if prefill == "blocks" else manifest.prefill_graphs(prefix),
            compress=None if none else "compress",
            decode=manifest.decode_graphs(prefix),
            full_cache=full_cache,
            extend=extend,
        )

    @property
    def form(self) -> PrefillForm:
        """How prompts are taken."""
        if self.extend is None:
            return "chunks"
        return "both" if self.prefill else "blocks"

    @property
    def all(self) -> list[GraphName]:
        """Every graph once."""
        others = [name for name in (self.compress, self.extend) if name]
        return [*self.decode.values(), *self.prefill.values(), *others]


class Executor:
    """A loaded build. Made by `open_executor`.

    Predictions lie in the executor's own buffers: they are valid until its next call. Every call
    raises DeviceError after `close`, or if the device fails.

    captured: whether a decode step is a single launch of a CUDA graph. prompt_cache: None where a
    single shot needs none.
    """

    def __init__(
        self,
        manifest: Manifest,
        graphs: GraphSet,
        backend: GraphBackend,
        weights: Buffers | None = None,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        """weights: those that the graphs take as inputs, in the backend's memory. prompt_cache:
        another executor's of the same model, on the same device.

        The backend's memory is this executor's own from now on: `close` frees it.
        """
        self.limits = Limits.of(manifest, full_cache=graphs.full_cache, prefill=graphs.form)
        self.backend = backend
        self.prompt_cache = prompt_cache
        self._manifest, self._graphs = manifest, graphs
        self._memory = backend.memory
        self._weights = weights or {}
        entry = self._entry(graphs.decode[self.limits.batch])
        whole = allocate(self._memory, entry, self._weights)
        self._decodes = {
            count: self._bind(name, _first(whole, count)) for count, name in graphs.decode.items()
        }
        self._rows = [_caches(whole, slot) for slot in range(self.limits.batch)]
        self._kept: Buffers = {}
        self._into_slot: FillSlot
        self._prefill: Prefill | None = self._make_prefill(whole) if graphs.prefill else None
        self._blocks = self._make_blocks()
        self._is_open = True
        self._last_prefilled = 0
        captured = [graph.capture() for graph in self._decodes.values()]
        self.captured = all(captured)
        if any(captured):  # each was run once
            for slot in range(self.limits.batch):
                self.clear(slot)

    @property
    def decode_buffers(self) -> dict[str, NDArray[Any]]:
        """Inputs and outputs of decode after a step, those that the host can see: to be read."""
        return dict(self._decodes[self.limits.batch].arrays)

    def prefill(
        self,
        slot: int,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float = 1.0,
    ) -> Prediction:
        """Run one chunk of a prompt: its tokens at positions [start, end).

        The last chunk also fills batch slot `slot`. The chunks of one prompt follow each other,
        with decode steps but no other prompt between them. The prediction is of the token after the
        chunk. temperature, above 0: for builds with top tokens.
        """
        self._require_open()
        assert self._prefill, "all prompts go block by block"
        self._last_prefilled = slot
        return self._prefill.run(slot, prompt, start, end, temperature)

    def extend(
        self,
        slot: int,
        prompt: Sequence[int],
        start: int,
        end: int,
        temperature: float = 1.0,
        parked: ParkedRow | None = None,
    ) -> Prediction:
        """Run one block of a prompt onto a compressed row; otherwise as `prefill`.

        parked: the row to begin with, for a prompt that begins with its tokens; None: an empty one.
        The first block begins behind it.
        """
        self._require_open()
        assert self._blocks, "the executor has no extend graph"
        if start == (len(parked.token_ids) if parked else 0):
            self._blocks.begin(parked)
        return self._blocks.run(slot, prompt, start, end, temperature)

    def park(self, slot: int, prompt: Sequence[int], *, in_blocks: bool) -> ParkedRow:
        """Copy the row of a prompt to the host, right after its last chunk, or its last block."""
        self._require_open()
        assert self._blocks, "the executor has no extend graph"
        if in_blocks:
            return self._blocks.parked(prompt)
        kept = self.topk_positions()
        assert kept is not None, "a full cache is not extended"
        return self._blocks.parked_from_slot(slot, prompt, kept)

    def prefill_prompt(
        self, slot: int, prompt: Sequence[int], temperature: float = 1.0
    ) -> Prediction:
        """Run all chunks of a prompt that is alone, cut as the scheduler cuts them."""
        chunk, length = self.limits.prefill_chunk, len(prompt)
        for end in [*range(chunk, length, chunk), length]:
            prediction = self.prefill(slot, prompt, max(0, end - chunk), end, temperature)
        return prediction

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Temperatures | None = None,
    ) -> Predictions:
        """Run one token of each of the first n batch slots; each argument is [n].

        Idle batch slots take zeros, and their contents are lost: a prompt's last chunk rewrites
        them. temperature, above 0: for builds with top tokens; None for 1 in all slots.
        """
        self._require_open()
        count = len(input_ids)
        graph = self._decodes[next(slots for slots in self._decodes if slots >= count)]
        write_decode_inputs(graph.arrays, input_ids, position_ids, prompt_length, temperature)
        graph.run()
        return Predictions(graph, count)

    def move(self, source: int, target: int) -> None:
        """Copy a batch slot's caches over another's. The source is idle from then on."""
        self._require_open()
        for over, row in zip(self._rows[target], self._rows[source], strict=True):
            self._memory.copy(over, row)
        if self._last_prefilled == source:
            self._last_prefilled = target

    def clear(self, slot: int) -> None:
        """Zero the caches that the batch slot's prompt filled, since it may have left NaN there.

        Masked attention multiplies stale entries by 0, and 0 * NaN would reach later prompts. The
        prompt cache is cleared too, unless another prompt came since. Other batch slots, a prompt
        half-way through prefill and the last predictions stay as they are.
        """
        self._require_open()
        for row in self._rows[slot]:
            self._memory.zero(row)
        if self._prefill and slot == self._last_prefilled:
            self._prefill.clear()

    def compress(self, slot: int, prompt_length: int) -> None:
        """Fill a batch slot from the prompt cache once more: to measure the step by itself.

        That is the compress step, or a copy where nothing is compressed.
        """
        self._require_open()
        assert self.prompt_cache, "a single shot compresses inside its prefill"
        self._into_slot.fill(slot, prompt_length)

    def topk_positions(self) -> list[Integers] | None:
        """Return what the last prompt kept, int64 [Hkv,K] for each layer, -1 where unused.

        None where nothing is compressed.
        """
        if self._graphs.full_cache:
            return None
        self._require_open()
        layers = range(self._manifest.geometry.num_layers)
        return [self._kept_of(names.topk_positions(layer)) for layer in layers]

    def close(self) -> None:
        """Free the device's memory now. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._decodes.clear()
            if self._prefill:
                del self._into_slot
            self._prefill = self._blocks = None
            self.backend.close()

    def _require_open(self) -> None:
        if not self._is_open:
            raise DeviceError("the executor was closed")

    def _make_blocks(self) -> Blocks | None:
        if self._graphs.extend is None:
            return None
        entry = self._entry(self._graphs.extend)
        geometry = self._manifest.geometry
        return Blocks(self.backend, entry, self._weights, self._rows, geometry)

    def _kept_of(self, name: str) -> Integers:
        if name not in self._kept:
            return np.empty((self._manifest.model.num_key_value_heads, 0), np.int64)
        positions: Integers = self._memory.read(self._kept[name])[0]
        return positions

    def _make_prefill(self, decode: Buffers) -> Prefill:
        *_, name = self._graphs.prefill.values()
        if self._manifest.single_shot:
            into_slot = self._fill_by_graph(name, self._weights, decode)
            return SingleShot(into_slot)
        entry = self._entry(name)
        cache = self.prompt_cache = self.prompt_cache or PromptCache(self._memory, entry)
        whole = allocate(self._memory, entry, self._weights | cache.buffers | cache.outputs(entry))
        graphs = {
            capacity: self._bind(name, whole | cache.of_capacity(capacity))
            for capacity, name in self._graphs.prefill.items()
        }
        if self._graphs.compress:
            self._fill_by_graph(self._graphs.compress, whole, decode)
        else:
            self._into_slot = FillByCopy(self._memory, whole, decode)
        return Chunked(graphs, cache, self._into_slot)

    def _fill_by_graph(self, name: GraphName, given: Buffers, decode: Buffers) -> FillByGraph:
        """Also notes where the kept positions are after a prompt."""
        batch, entry = self.limits.batch, self._entry(name)
        into_slot = FillByGraph(self.backend, name, entry, given, decode, batch)
        self._into_slot, self._kept = into_slot, into_slot.graph.buffers
        return into_slot

    def _bind(self, name: GraphName, buffers: Buffers) -> BoundGraph:
        return BoundGraph(self.backend, name, self._entry(name), buffers | self._weights)

    def _entry(self, name: GraphName) -> GraphEntry:
        return self._manifest.graphs[name]


def _extend_of(build: Build, baseline: bool, prefill: PrefillForm) -> GraphName | None:
    """The extend graph, where a form of prefill needs it. Raises UserError."""
    if prefill == "chunks":
        return None
    if baseline or not build.manifest.geometry.compresses:
        raise UserError(
            "a full cache takes no prompt block by block",
            "leave it out: prefill goes chunk by chunk",
        )
    if "extend" not in build.manifest.graphs:
        raise UserError(f"{build.directory} has no extend.onnx", "build it again with --extend")
    return "extend"


def _first(buffers: Buffers, slots: int) -> Buffers:
    """The same memory, as the decode graph of fewer batch slots takes it."""
    return {name: buffer.rows(0, slots) for name, buffer in buffers.items()}


def _caches(buffers: Buffers, slot: int) -> list[Buffer]:
    """A batch slot's rows of the caches among decode's buffers, each once."""
    return [one.rows(slot, slot + 1) for name, one in buffers.items() if names.is_past(name)]
