"""Runs a build's graphs with ONNX Runtime, on the CPU or on a GPU.

Owns the caches: decode's with a row for each slot and, where prefill goes chunk by chunk, one of
full length for the prompt in prefill. They are allocated here, once, and written in place.
Responsible for which graph runs on which buffers; what a graph computes is the build's affair, and
where the buffers lie the device's.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import GraphName
from snapexport.contract.targets import capabilities
from snapexport.runtime.cuda_device import DeviceError
from snapexport.runtime.decode_inputs import write_decode_inputs
from snapexport.runtime.executor import Integers, Limits, Temperatures
from snapexport.runtime.onnxruntime_devices import Buffer, Device, Host
from snapexport.runtime.onnxruntime_prefill import Copy, IntoSlot, PromptCache
from snapexport.runtime.onnxruntime_session import BoundGraph, Buffers, Graph, buffers_for
from snapexport.runtime.predictions import Prediction, Predictions
from snapexport.runtime.prefill import Chunked, HandOver, SingleShot

_HEAVY = frozenset(
    "Attention AveragePool FusedMatMul GatherND GroupQueryAttention MatMul MatMulNBits "
    "RMSNormalization RotaryEmbedding Softmax TensorScatter TopK".split()
)
"""Operators of caches, weights and hidden states: on the CPU they cost a copy there and back."""


class OnnxRuntimeEngine:
    """A build on a device: the CPU, unless another is given.

    `baseline` runs its graphs without compression. `prepack` buys faster decoding of all the slots
    with a second copy of the weights; nothing, where these are 8 to 32. `decode_buffers` are
    decode's inputs and outputs as they are after a step, as far as the host can see them: to be
    looked at. `captured`: whether a decode step is one launch of a CUDA graph.
    """

    def __init__(
        self,
        build: Build,
        baseline: bool = False,
        threads: int | None = None,
        prepack: bool = False,
        prompt_cache: PromptCache | None = None,
        device: Device | None = None,
        captures: bool = True,
    ) -> None:
        """prompt_cache: another engine's, to prefill what their prompts have in common once.

        device: it is this engine's own from now on. captures: a decode step by one launch, where
        the device can do that.
        """
        self._device = device or Host()
        require_runnable(build, baseline, cuda=self._device.name == "cuda")
        self._build = build
        self._threads = threads
        self._compresses = build.manifest.geometry.compresses and not baseline
        self.limits = Limits.of(build.manifest, full_cache=not self._compresses)
        # A build of the full cache is its own baseline.
        prefix = "baseline/" if baseline and build.has_baseline else ""
        # Weights of 4 bits have to be rearranged: as they lie they take 50 times as long.
        always = build.manifest.quantization is not None
        self._graphs: dict[GraphName, Graph] = {}
        decodes = {
            slots: self._graph(name, always or (prepack and slots == self.limits.batch), captures)
            for slots, name in build.manifest.decode_graphs(prefix).items()
        }
        self._slots, self._decodes = self._make_decode(decodes)
        self._rows = [_caches(self._slots, slot) for slot in range(self.limits.batch)]
        self.captured = all(graph.captured for graph in decodes.values())
        prefill = self._graph(f"{prefix}prefill", always)
        self.prompt_cache = prompt_cache
        self._prefill, self._kept = self._make_prefill(prefill)
        self._last_prefilled = 0
        if self._device.name == "cuda":
            self._warn_of_the_cpu()
        if self.captured:
            self._capture()

    @property
    def decode_buffers(self) -> dict[str, NDArray[Any]]:
        return self._decodes[self.limits.batch].arrays

    def prefill(
        self,
        slot: int,
        token_ids: Sequence[int],
        past_length: int,
        prompt_length: int,
        temperature: float = 1.0,
    ) -> Prediction:
        """One chunk; the last one fills the slot. What it says is valid until the next call."""
        self._require_open()
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
        self._require_open()
        count = len(input_ids)
        graph = self._decodes[next(slots for slots in self._decodes if slots >= count)]
        write_decode_inputs(graph.arrays, input_ids, position_ids, prompt_length, temperature)
        graph.run()
        return Predictions(graph, count)

    def move(self, source: int, target: int) -> None:
        """Copy a slot's caches over another's."""
        self._require_open()
        for over, row in zip(self._rows[target], self._rows[source], strict=True):
            self._device.copy(over, row)
        if self._last_prefilled == source:
            self._last_prefilled = target

    def clear(self, slot: int) -> None:
        """Zero the slot, and the full-length cache if the slot's prompt is what it holds."""
        self._require_open()
        for row in self._rows[slot]:
            self._device.zero(row)
        if slot == self._last_prefilled:
            self._prefill.clear()

    def topk_positions(self) -> list[NDArray[np.int64]] | None:
        """For each layer what the last prompt kept, [Hkv, K], -1 where unused.

        None where nothing is compressed.
        """
        if not self._compresses:
            return None
        layers = range(self._build.manifest.geometry.num_layers)
        return [self._kept_of(names.topk_positions(layer)) for layer in layers]

    def hand_over(self, slot: int, prompt_length: int) -> None:
        """What a prompt's last chunk ends with, once more: to be measured by itself."""
        self._require_open()
        assert self._hand_over is not None, "a single shot compresses inside its prefill"
        self._hand_over.fill(slot, prompt_length)

    def operators(self) -> dict[GraphName, dict[str, dict[str, int]]]:
        """For each graph, by execution provider, how many nodes of which operator it runs.

        On a GPU, the CPU's are those of which CUDA's provider has no kernel, and arithmetic with
        shapes.
        """
        return {
            name: {provider: dict(found) for provider, found in graph.operators().items()}
            for name, graph in self._graphs.items()
        }

    def close(self) -> None:
        """Free a GPU's memory now. Nothing can be run afterwards; a second call is nothing."""
        if self._graphs:
            self._decodes.clear()
            self._graphs.clear()
            del self._prefill, self._hand_over
            self._device.close()

    def _require_open(self) -> None:
        if not self._graphs:
            raise DeviceError("the engine was closed")

    def _kept_of(self, name: str) -> NDArray[np.int64]:
        if name in self._kept:
            positions: NDArray[np.int64] = self._device.read(self._kept[name])[0]
            return positions
        return np.empty((self._build.manifest.model.num_key_value_heads, 0), np.int64)

    def _make_decode(self, graphs: dict[int, Graph]) -> tuple[Buffers, dict[int, BoundGraph]]:
        """The buffers of all the slots, and by its slots each graph, over the first of them."""
        buffers = buffers_for(graphs[self.limits.batch].entry, self._device)
        return buffers, {n: graph.bind(_first(buffers, n)) for n, graph in graphs.items()}

    def _make_prefill(self, graph: Graph) -> tuple[SingleShot | Chunked, Buffers]:
        """The way into a slot, and the buffers that hold the kept positions afterwards."""
        batch = self.limits.batch
        self._hand_over: HandOver | None = None
        if self._build.manifest.single_shot:
            into_slot = IntoSlot(graph, {}, self._slots, batch)
            return SingleShot(into_slot.bound, into_slot), into_slot.buffers
        cache = self.prompt_cache = self.prompt_cache or PromptCache(graph)
        buffers = buffers_for(graph.entry, self._device, cache.buffers)
        bound = graph.bind(buffers)
        if not self._compresses:
            copy = self._hand_over = Copy(self._device, buffers, self._slots)
            return Chunked(bound, cache, copy), {}
        compress = IntoSlot(self._graph("compress", prepack=False), buffers, self._slots, batch)
        self._hand_over = compress
        return Chunked(bound, cache, compress), compress.buffers

    def _capture(self) -> None:
        """The first run of each decode graph, before anybody waits for a token."""
        for bound in self._decodes.values():
            bound.run()
        for slot in range(self.limits.batch):
            self.clear(slot)

    def _warn_of_the_cpu(self) -> None:
        for name, found in self.operators().items():
            ran = found.get("CPUExecutionProvider", {})
            if heavy := sorted(_HEAVY & ran.keys()):
                warnings.warn(
                    f"the CPU runs {', '.join(heavy)} of {name}: this ONNX Runtime has no CUDA "
                    "kernel for them, and each run copies what they read and write",
                    RuntimeWarning,
                    3,
                )

    def _graph(self, name: GraphName, prepack: bool, captures: bool = False) -> Graph:
        captures = captures and self._device.captures
        graph = Graph(self._build, name, self._device, self._threads, prepack, captures)
        self._graphs[name] = graph
        return graph


def _first(buffers: Buffers, slots: int) -> Buffers:
    """The same memory, as the decode graph of fewer slots takes it."""
    return {name: buffer.rows(0, slots) for name, buffer in buffers.items()}


def _caches(buffers: Buffers, slot: int) -> list[Buffer]:
    """A slot's rows of the caches among decode's buffers, each once."""
    return [one.rows(slot, slot + 1) for name, one in buffers.items() if names.is_past(name)]


def require_runnable(build: Build, baseline: bool, cuda: bool = False) -> None:
    """Raise a UserError for what the CPU, CUDA's provider, or this build can't do."""
    if cuda:
        _require_cuda_kernels(build)
    elif build.manifest.dtype == "bf16":
        raise UserError(
            f"{build.directory} is a bf16 build: ONNX Runtime cannot calculate in bf16 on the CPU",
            _engines_first(build) + "build it again with --dtype fp32, or `snapexport generate` it "
            "on a GPU: --backend onnxruntime-cuda",
        )
    if baseline and build.manifest.geometry.compresses and not build.has_baseline:
        raise UserError(
            f"{build.directory} has no baseline graphs", "build it again with --baseline"
        )


def _require_cuda_kernels(build: Build) -> None:
    """What ONNX Runtime's own attention operator has no kernel for, on a GPU."""
    manifest = build.manifest
    if manifest.dtype not in capabilities(manifest.target).cuda_dtypes:
        raise UserError(
            f"{build.directory} is an fp32 build for ONNX Runtime, whose attention operator has "
            "kernels for fp16 and bf16 alone on a GPU",
            "build it again with --dtype fp16 or bf16, or with --target portable",
        )


def _engines_first(build: Build) -> str:
    """The way out of a build that was made for a GPU."""
    if not capabilities(build.manifest.target).compiled:
        return ""
    return f"make its engines on a machine with a GPU: `snapexport engine {build.directory}`; or "
