"""Ties one graph to its buffers. Nothing is allocated or rebound after that.

Knows no library and no batch slot.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.methods import table
from snapexport.runtime.engine.backend import Buffer, Buffers, GraphBackend, Memory, Work

HostArrays = Mapping[str, NDArray[Any]]
"""Arrays that the host writes before a run and reads after it, by the graph's names."""


class BoundGraph:
    """A graph and its buffers: write `arrays`, `run`, read `arrays`.

    arrays: the host's side of every input and output that has one.
    """

    def __init__(
        self, backend: GraphBackend, name: GraphName, entry: GraphEntry, buffers: Buffers
    ) -> None:
        """buffers: of every input and output of the graph, and possibly more."""
        specs = (*entry.inputs, *entry.outputs)
        self.buffers = {spec.name: buffers[spec.name] for spec in specs}
        self.arrays: HostArrays = {
            name: one.array for name, one in self.buffers.items() if one.array is not None
        }
        self._name, self._backend, self._memory = name, backend, backend.memory
        self._launch = backend.bind(name, self.buffers)  # refuses a graph that isn't the manifest's
        for spec in specs:
            buffer = self.buffers[spec.name]
            assert (buffer.dtype, buffer.shape) == (spec.dtype, tuple(spec.shape)), spec.name
        self._written = [
            buffers[spec.name] for spec in entry.inputs if buffers[spec.name].is_of_host
        ]
        outputs = {spec.name for spec in entry.outputs}
        read = table.likeliest(outputs) or {names.LOGITS} & outputs
        self._read = {name: buffers[name] for name in read}
        self._work: Work | None = None

    def run(self) -> None:
        """Run from the host's inputs to the outputs that the host reads each time."""
        (self._work or self._enqueue)()
        self._memory.synchronize()

    def capture(self) -> bool:
        """Make each run a single launch, where the device can; say whether it does."""
        self._work = self._backend.capture(self._name, self._enqueue)
        return self._work is not None

    def rows(self, output: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of an output in `arrays`, downloaded now if no run does it."""
        rows: Buffer = self.buffers[output].rows(start, stop)
        if output not in self._read:
            self._memory.download(rows)
            self._memory.synchronize()
        return rows.host

    def _enqueue(self) -> None:
        for buffer in self._written:
            self._memory.upload(buffer)
        self._launch()
        for buffer in self._read.values():
            self._memory.download(buffer)


def allocate(memory: Memory, entry: GraphEntry, given: Mapping[str, Buffer]) -> Buffers:
    """Return a buffer for each input and output of a graph: a given one, or a new one.

    A cache output shares the buffer of its input.
    """
    buffers = dict(given)
    for spec in (*entry.inputs, *entry.outputs):
        if spec.name not in buffers:
            shared = buffers.get(names.past_of(spec.name))
            buffers[spec.name] = shared or memory.allocate(spec)
    return buffers


def write_tokens(arrays: HostArrays, token_ids: Sequence[int], temperature: float) -> None:
    """Write a chunk's tokens, padded with zeros, and the temperature if the graph takes it."""
    row = arrays[names.INPUT_IDS][0]
    row[: len(token_ids)] = token_ids
    row[len(token_ids) :] = 0
    if names.TEMPERATURE in arrays:
        arrays[names.TEMPERATURE][:] = temperature
