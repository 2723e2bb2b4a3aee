"""The full-length cache as arrays, and the hand-overs from a prompt to a slot's row.

IntoSlot   a graph writes the row: compress.onnx, or a single-shot prefill
Copy       the prompt's positions are copied, where nothing is compressed
"""

from snapexport.contract import names
from snapexport.runtime.onnxruntime_session import Buffers, Graph, buffers_for
from snapexport.runtime.prompt_cache import CachedTokens


class PromptCache(CachedTokens):
    """The full-length cache of the prompt in prefill, and which tokens stand in it.

    Engines of the same model may share one, if each prompt is prefilled to its end.
    """

    def __init__(self, graph: Graph) -> None:
        arrays = buffers_for(graph.entry)
        super().__init__(chunk=len(arrays[names.INPUT_IDS][0]))
        self.buffers = {name: arrays[name] for name in arrays if names.is_cache(name)}

    def clear(self) -> None:
        """Forget all, and leave no number that isn't finite."""
        super().clear()
        for cache in self.buffers.values():
            cache[...] = 0


class IntoSlot:
    """A graph from a prompt, or its full-length cache, into the slot: one binding for each slot."""

    def __init__(self, graph: Graph, given: Buffers, decode: Buffers, batch: int) -> None:
        """given: inputs that exist already, as prefill's outputs do for compress.onnx."""
        inputs = {name: array for name, array in given.items() if not names.is_present(name)}
        self.buffers = buffers_for(graph.entry, inputs | _row(decode, 0))
        self._bound = [graph.bind(self.buffers | _row(decode, slot)) for slot in range(batch)]

    def fill(self, slot: int, prompt_length: int) -> None:
        """Run the graph that writes every position of the slot."""
        self.buffers[names.PROMPT_LENGTH][:] = prompt_length
        self._bound[slot].run()


class Copy:
    """The prompt's positions, as they are. Later ones are stale until decode writes over them."""

    def __init__(self, prefill: Buffers, decode: Buffers) -> None:
        self._caches = [(prefill[name], row) for name, row in decode.items() if names.is_past(name)]

    def fill(self, slot: int, prompt_length: int) -> None:
        """Copy no more than the prompt."""
        for source, target in self._caches:
            target[slot, :, :prompt_length] = source[0, :, :prompt_length]


def _row(decode: Buffers, slot: int) -> Buffers:
    """The slot's part of decode's caches, as the cache outputs of a graph for one prompt."""
    return {
        name: array[slot : slot + 1] for name, array in decode.items() if names.is_present(name)
    }
