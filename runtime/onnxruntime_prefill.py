"""The full-length cache in buffers, and the hand-overs from a prompt to a slot's row.

IntoSlot   a graph writes the row: compress.onnx, or a single-shot prefill
Copy       the prompt's positions are copied, where nothing is compressed
"""

from snapexport.contract import names
from snapexport.runtime.onnxruntime_devices import Device
from snapexport.runtime.onnxruntime_session import Buffers, Graph, buffers_for
from snapexport.runtime.prompt_cache import CachedTokens


class PromptCache(CachedTokens):
    """The full-length cache of the prompt in prefill, and which tokens stand in it.

    Engines of the same model on one device may share one, if each prompt is prefilled to its end.
    """

    def __init__(self, graph: Graph) -> None:
        specs = {spec.name: spec for spec in graph.entry.inputs}
        super().__init__(chunk=specs[names.INPUT_IDS].shape[1])
        self._device = graph.device
        pasts = {name: graph.device.new(specs[name]) for name in specs if names.is_past(name)}
        self.buffers = pasts | {names.present_of(name): one for name, one in pasts.items()}

    def clear(self) -> None:
        """Forget all, and leave no number that isn't finite."""
        super().clear()
        for name, cache in self.buffers.items():
            if names.is_past(name):
                self._device.zero(cache)


class IntoSlot:
    """A graph from a prompt, or its full-length cache, into the slot: one binding for each slot."""

    def __init__(self, graph: Graph, given: Buffers, decode: Buffers, batch: int) -> None:
        """given: inputs that exist already, as prefill's outputs do for compress.onnx."""
        inputs = {name: one for name, one in given.items() if not names.is_present(name)}
        self.buffers = buffers_for(graph.entry, graph.device, inputs | _row(decode, 0))
        self._bound = [graph.bind(self.buffers | _row(decode, slot)) for slot in range(batch)]
        self.bound = self._bound[0]

    def fill(self, slot: int, prompt_length: int) -> None:
        """Run the graph that writes every position of the slot."""
        self.bound.arrays[names.PROMPT_LENGTH][:] = prompt_length
        self._bound[slot].run()


class Copy:
    """The prompt's positions, as they are. Later ones are stale until decode writes over them."""

    def __init__(self, device: Device, prefill: Buffers, decode: Buffers) -> None:
        self._device = device
        self._caches = [(prefill[name], one) for name, one in decode.items() if names.is_past(name)]

    def fill(self, slot: int, prompt_length: int) -> None:
        """Copy no more than the prompt."""
        for source, target in self._caches:
            self._device.copy_positions(target.rows(slot, slot + 1), source, prompt_length)


def _row(decode: Buffers, slot: int) -> Buffers:
    """The slot's part of decode's caches, as the cache outputs of a graph for one prompt."""
    return {n: one.rows(slot, slot + 1) for n, one in decode.items() if names.is_present(n)}
