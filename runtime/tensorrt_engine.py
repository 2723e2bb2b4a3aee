"""Runs a build's TensorRT plans on a GPU.

Owns the device memory: decode's caches with a row for each slot, the full-length one of the prompt
in prefill where that goes chunk by chunk, and one workspace that the graphs share. All of it is
allocated here, once. Responsible for which plan runs on which memory; what it computes is the
build's affair.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import GraphName
from snapexport.contract.targets import capabilities
from snapexport.contract.tensors import in_place
from snapexport.runtime.cuda_device import DeviceError
from snapexport.runtime.decode_inputs import write_decode_inputs
from snapexport.runtime.executor import Integers, Limits, Temperatures
from snapexport.runtime.predictions import Prediction, Predictions
from snapexport.runtime.prefill import Chunked, SingleShot
from snapexport.runtime.tensorrt_graph import BoundGraph, contexts_of
from snapexport.runtime.tensorrt_plans import open_plans
from snapexport.runtime.tensorrt_prefill import Copy, IntoSlot, PromptCache, caches


class TrtEngine:
    """A build on the GPU. `baseline` runs its graphs without compression.

    captured: whether a decode step is one launch of a CUDA graph, as it should be.
    """

    def __init__(self, build: Build, baseline: bool = False) -> None:
        """Load the plans that were built for this machine. Raises UserError."""
        require_runnable(build, baseline)
        self._manifest = build.manifest
        self._compresses = build.manifest.geometry.compresses and not baseline
        self.limits = Limits.of(build.manifest, full_cache=not self._compresses)
        prefix = "baseline/" if baseline and build.has_baseline else ""
        wanted = self._graphs(prefix)
        self._device, self._plans = open_plans(build, wanted)
        self._load(prefix, wanted)
        steps = {slots: self._captured_step(graph) for slots, graph in self._decodes.items()}
        self._steps = {slots: step for slots, (step, _) in steps.items()}
        self.captured = all(captured for _, captured in steps.values())
        self._last_prefilled = 0

    def prefill(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float = 1.0,
    ) -> Prediction:
        """One chunk; the last one fills the slot. What it says is valid until the next call."""
        self._last_prefilled = slot
        return self._prefill.run(slot, token_ids, past_length, prompt_length, temperature)

    def decode(
        self,
        input_ids: Integers,
        position_ids: Integers,
        prompt_length: Integers,
        temperature: Temperatures | None = None,
    ) -> Predictions:
        """One token of the first n slots. What it says is valid until the next call."""
        count = len(input_ids)
        slots = next(slots for slots in self._decodes if slots >= count)
        graph = self._decodes[slots]
        write_decode_inputs(graph.arrays, input_ids, position_ids, prompt_length, temperature)
        self._steps[slots]()
        self._device.synchronize()
        return Predictions(graph, count)

    def move(self, source: int, target: int) -> None:
        """Copy a slot's caches over another's."""
        for cache in self._slots.values():
            self._device.copy(cache.row(target), cache.row(source), cache.row_bytes)
        if self._last_prefilled == source:
            self._last_prefilled = target

    def clear(self, slot: int) -> None:
        """Zero the slot, and the full-length cache if the slot's prompt is what it holds."""
        for cache in self._slots.values():
            self._device.zero(cache.row(slot), cache.row_bytes)
        if slot == self._last_prefilled:
            self._prefill.clear()

    def topk_positions(self) -> list[Integers] | None:
        """For each layer what the last prompt kept, [Hkv, K], -1 where unused.

        None where nothing is compressed.
        """
        if not self._compresses:
            return None
        return [self._kept(layer) for layer in range(self._manifest.geometry.num_layers)]

    def close(self) -> None:
        """Free the buffers now. The plans and their weights go with the object."""
        self._device.close()

    def _graphs(self, prefix: str) -> list[GraphName]:
        """Those that run."""
        hands_over = self._compresses and not self._manifest.single_shot
        decodes = self._manifest.decode_graphs(prefix).values()
        return [*decodes, f"{prefix}prefill", *(["compress"] if hands_over else [])]

    def _load(self, prefix: str, wanted: list[GraphName]) -> None:
        """Plans, contexts and buffers: everything that takes the GPU's memory."""
        decodes = self._manifest.decode_graphs(prefix)
        engines = {name: self._plans.load(name) for name in wanted}
        self._plans.errors.clear()
        self._contexts = contexts_of(self._device, engines, self._plans.errors)
        whole = self._bind(decodes.pop(self.limits.batch))
        self._slots = caches(whole)
        rows = {n: address for n, address in whole.addresses.items() if names.is_cache(n)}
        smaller = {slots: self._bind(name, rows) for slots, name in decodes.items()}
        self._decodes = smaller | {self.limits.batch: whole}
        self._chooser = self._bind(f"{prefix}prefill")
        self._prefill = self._make_prefill(self._chooser)

    def _make_prefill(self, graph: BoundGraph) -> SingleShot | Chunked:
        """The way into a slot."""
        device = self._device
        if self._manifest.single_shot:
            return SingleShot(graph, IntoSlot(device, graph, self._slots))
        cache = PromptCache(device, graph)
        if not self._compresses:
            copy = Copy(device, caches(graph), self._slots)
            return Chunked(graph, cache, copy)
        given = {n: place for n, place in graph.addresses.items() if not names.is_present(n)}
        self._chooser = self._bind("compress", given)
        into_slot = IntoSlot(device, self._chooser, self._slots)
        return Chunked(graph, cache, into_slot)

    def _bind(self, name: GraphName, given: Mapping[str, int] | None = None) -> BoundGraph:
        entry = self._manifest.graphs[name]
        aliases = in_place(name, entry)
        return BoundGraph(self._device, self._contexts[name], entry, aliases, given or {})

    def _captured_step(self, decode: BoundGraph) -> tuple[Callable[[], None], bool]:
        """A decode step as one launch, and whether it could be had."""
        self._device.settle()
        decode.run()  # TensorRT sets itself up in the first run
        try:
            return self._device.capture(decode.enqueue), True
        except DeviceError as error:
            warnings.warn(
                f"decode runs without a CUDA graph, and slower: {error}", RuntimeWarning, 2
            )
            return decode.enqueue, False

    def _kept(self, layer: int) -> Integers:
        specs = {spec.name: spec for spec in self._chooser.entry.outputs}
        spec = specs.get(names.topk_positions(layer))
        if spec is None:
            return np.empty((self._manifest.model.num_key_value_heads, 0), np.int64)
        positions: Integers = np.zeros(spec.shape[1:], np.int64)
        self._device.download(positions, self._chooser.addresses[spec.name])
        self._device.synchronize()
        return positions


def require_runnable(build: Build, baseline: bool) -> None:
    """Raise a UserError for what no engine of this build can do."""
    if not capabilities(build.manifest.target).compiled:
        raise UserError(
            f"{build.directory} was built for {build.manifest.target}, not for TensorRT",
            "build it again with --target tensorrt, or run it by --backend onnxruntime",
        )
    if baseline and build.manifest.geometry.compresses and not build.has_baseline:
        raise UserError(
            f"{build.directory} has no baseline graphs", "build it again with --baseline"
        )
