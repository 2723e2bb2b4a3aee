"""Runs a build's graphs with ONNX Runtime on the CPU.

Owns the caches: decode's with a row for each slot and, where prefill goes chunk by chunk, one of
full length for the prompt in prefill. They are allocated here, once, and written in place.
Responsible for which graph runs on which buffers; what a graph computes is the build's affair.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import GraphName
from snapexport.runtime.decode_inputs import write_decode_inputs
from snapexport.runtime.engine import Integers, Limits, Logits
from snapexport.runtime.onnxruntime_prefill import Copy, IntoSlot, PromptCache
from snapexport.runtime.onnxruntime_session import Buffers, Graph, buffers_for
from snapexport.runtime.prefill import Chunked, SingleShot


class OnnxRuntimeEngine:
    """A build on the CPU.

    `baseline` runs its graphs without compression. `prepack` buys faster decoding of all the slots
    with a second copy of the weights. `decode_buffers` are decode's inputs and outputs as they are
    after a step: to be looked at.
    """

    def __init__(
        self,
        build: Build,
        baseline: bool = False,
        threads: int | None = None,
        prepack: bool = False,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        """prompt_cache: another engine's, to prefill what their prompts have in common once."""
        require_runnable(build, baseline)
        self._build = build
        self._threads = threads
        self._compresses = build.manifest.geometry.compresses and not baseline
        self.limits = Limits.of(build.manifest, full_cache=not self._compresses)
        # A build of the full cache is its own baseline.
        prefix = "baseline/" if baseline and build.has_baseline else ""
        # Weights of 4 bits have to be rearranged: as they lie they take 50 times as long.
        always = build.manifest.quantization is not None
        decodes = {
            slots: self._graph(name, always or (prepack and slots == self.limits.batch))
            for slots, name in build.manifest.decode_graphs(prefix).items()
        }
        # The full cache's graph has no use for the prompt's length, and no such input.
        lengths = {names.PROMPT_LENGTH: np.zeros(self.limits.batch, np.int64)}
        self.decode_buffers = buffers_for(decodes[self.limits.batch].entry, lengths)
        self._decodes = {
            slots: graph.bind(_first(self.decode_buffers, slots))
            for slots, graph in decodes.items()
        }
        prefill = self._graph(f"{prefix}prefill", always)
        self.prompt_cache = prompt_cache
        self._prefill, self._kept = self._make_prefill(prefill)
        self._last_prefilled = 0

    def prefill(
        self, slot: int, token_ids: Sequence[int], past_length: int, prompt_length: int
    ) -> Logits:
        """One chunk; the last one fills the slot. The logits stay valid until the next call."""
        self._last_prefilled = slot
        return self._prefill.run(slot, token_ids, past_length, prompt_length)

    def decode(
        self, input_ids: Integers, position_ids: Integers, prompt_length: Integers
    ) -> Logits:
        """One token of the first n slots. The logits stay valid until the next call."""
        count = len(input_ids)
        slots = next(slots for slots in self._decodes if slots >= count)
        inputs = _first(self.decode_buffers, slots)
        write_decode_inputs(inputs, input_ids, position_ids, prompt_length)
        self._decodes[slots].run()
        return self.decode_buffers[names.LOGITS][:count].astype(np.float32, copy=False)

    def move(self, source: int, target: int) -> None:
        """Copy a slot's caches over another's."""
        for cache in _caches(self.decode_buffers):
            cache[target] = cache[source]
        if self._last_prefilled == source:
            self._last_prefilled = target

    def clear(self, slot: int) -> None:
        """Zero the slot, and the full-length cache if the slot's prompt is what it holds."""
        for cache in _caches(self.decode_buffers):
            cache[slot] = 0
        if slot == self._last_prefilled:
            self._prefill.clear()

    def topk_positions(self) -> list[NDArray[np.int64]] | None:
        """For each layer what the last prompt kept, [Hkv, K], -1 where unused.

        None where nothing is compressed.
        """
        if not self._compresses:
            return None
        heads = self._build.manifest.model.num_key_value_heads
        nothing = np.empty((1, heads, 0), np.int64)
        layers = range(self._build.manifest.geometry.num_layers)
        return [self._kept.get(names.topk_positions(layer), nothing)[0].copy() for layer in layers]

    def _make_prefill(self, graph: Graph) -> tuple[SingleShot | Chunked, Buffers]:
        """The way into a slot, and the buffers that hold the kept positions afterwards."""
        decode, batch = self.decode_buffers, self.limits.batch
        if self._build.manifest.single_shot:
            into_slot = IntoSlot(graph, {}, decode, batch)
            return SingleShot(into_slot.buffers, into_slot), into_slot.buffers
        cache = self.prompt_cache = self.prompt_cache or PromptCache(graph)
        buffers = buffers_for(graph.entry, cache.buffers)
        bound = graph.bind(buffers)
        if not self._compresses:
            return Chunked(bound, buffers, cache, Copy(buffers, decode)), {}
        compress = IntoSlot(self._graph("compress", prepack=False), buffers, decode, batch)
        return Chunked(bound, buffers, cache, compress), compress.buffers

    def _graph(self, name: GraphName, prepack: bool) -> Graph:
        return Graph(self._build, name, self._threads, prepack)


def _first(buffers: Buffers, slots: int) -> Buffers:
    """The same memory, as the decode graph of fewer slots takes it."""
    return {name: array[:slots] for name, array in buffers.items()}


def _caches(buffers: Buffers) -> list[NDArray[Any]]:
    """The caches among a graph's buffers, each once. A single-shot prefill has none of its own."""
    return [array for name, array in buffers.items() if names.is_past(name)]


def require_runnable(build: Build, baseline: bool) -> None:
    """Raise a UserError for what the CPU, or this build, can't do."""
    if build.manifest.dtype == "bf16":
        raise UserError(
            f"{build.directory} is a bf16 build: ONNX Runtime cannot calculate in bf16 on the CPU",
            _engines_first(build) + "build it again with --dtype fp32",
        )
    if baseline and build.manifest.geometry.compresses and not build.has_baseline:
        raise UserError(
            f"{build.directory} has no baseline graphs", "build it again with --baseline"
        )


def _engines_first(build: Build) -> str:
    """The way out of a build that was made for a GPU."""
    if build.manifest.target != "tensorrt":
        return ""
    return f"make its engines on a machine with a GPU: `snapexport engine {build.directory}`; or "
