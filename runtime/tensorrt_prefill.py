"""The full-length cache on the GPU, and the hand-overs from a prompt to a slot's row.

A row [Hkv, S, D] is contiguous, so that each is one copy within the GPU's memory.
"""

from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.bytes import tensor_bytes
from snapexport.contract.manifest import TensorSpec
from snapexport.runtime.cuda_device import Device
from snapexport.runtime.prompt_cache import CachedTokens
from snapexport.runtime.tensorrt_graph import BoundGraph


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's keys or values, [rows, Hkv, S, D], at an address."""

    spec: TensorSpec
    address: int

    @property
    def row_bytes(self) -> int:
        """Of one slot."""
        return tensor_bytes(self.spec) // self.spec.shape[0]

    def row(self, slot: int) -> int:
        """Address of a slot's part."""
        return self.address + slot * self.row_bytes


Caches = dict[str, Cache]
"""By the names of the cache outputs."""


def caches(graph: BoundGraph) -> Caches:
    """A graph's caches after a run."""
    return {
        spec.name: Cache(spec, graph.addresses[spec.name])
        for spec in graph.entry.outputs
        if names.is_present(spec.name)
    }


class PromptCache(CachedTokens):
    """The full-length cache of the prompt in prefill, and which tokens stand in it."""

    def __init__(self, device: Device, graph: BoundGraph) -> None:
        super().__init__(chunk=graph.arrays[names.INPUT_IDS].shape[1])
        self._device = device
        self._caches = caches(graph)

    def clear(self) -> None:
        """Forget all, and leave no number that isn't finite."""
        super().clear()
        for cache in self._caches.values():
            self._device.zero(cache.address, cache.row_bytes)


class IntoSlot:
    """A graph from a prompt, or its full-length cache, to one row, which is copied to the slot."""

    def __init__(self, device: Device, graph: BoundGraph, decode: Caches) -> None:
        self._device = device
        self._graph = graph
        self._pairs = _paired(caches(graph), decode)

    def fill(self, slot: int, prompt_length: int) -> None:
        """Rewrite every position of the slot."""
        self._graph.arrays[names.PROMPT_LENGTH][:] = prompt_length
        self._graph.run()
        for source, target in self._pairs:
            self._device.copy(target.row(slot), source.address, target.row_bytes)


class Copy:
    """The prompt's positions, as they are. Later ones are stale until decode writes over them."""

    def __init__(self, device: Device, prefill: Caches, decode: Caches) -> None:
        self._device = device
        self._pairs = _paired(prefill, decode)

    def fill(self, slot: int, prompt_length: int) -> None:
        """Copy no more than the prompt."""
        for source, target in self._pairs:
            _, heads, positions, _ = target.spec.shape
            pitch = target.row_bytes // heads
            width = pitch // positions * prompt_length
            self._device.copy_rows(target.row(slot), source.address, heads, pitch, width)


def _paired(sources: Caches, targets: Caches) -> list[tuple[Cache, Cache]]:
    """From where to where a row is copied: both are of one size."""
    pairs = [(sources[name], target) for name, target in targets.items()]
    assert all(source.row_bytes == target.row_bytes for source, target in pairs)
    return pairs
