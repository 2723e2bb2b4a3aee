"""Ties one graph to its buffers, runs it, and gives access to its predictions.

Nothing is allocated or rebound after that, and of predictions only what is read is fetched from a
GPU. Knows no library and no batch slot, and of requests only how they are sampled.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.methods import table
from snapexport.runtime.engine.backend import (
    Buffer,
    Buffers,
    Floats,
    GraphBackend,
    Integers,
    Memory,
    Work,
)

HostArrays = Mapping[str, NDArray[Any]]
"""Arrays that the host writes before a run and reads after it, by the graph's names."""

Logits = Floats
FetchLogits = Callable[[], Logits]

Weights = NDArray[np.float64]
Choices = tuple[Sequence[int], Weights]
"""Tokens, ascending, and their weights: proportional to probability, 0 where top-p leaves one out.

Weights are not normalized: a draw doesn't need it, and each pass over a vocabulary takes time."""


class Sampled(Protocol):
    """How a token is sampled: as `SamplingParams` says, which has more."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def min_p(self) -> float: ...


class Prediction:
    """The logits of one request's next token, in the executor's own buffers.

    A method whose graphs say more about the token has a kind of its own, which reads the logits
    only where they are needed.
    """

    def __init__(self, fetch: FetchLogits) -> None:
        """fetch: returns the logits, float32 [V]."""
        self._fetch = fetch

    @classmethod
    def of(cls, fetch: FetchLogits, arrays: HostArrays, place: tuple[int, ...]) -> "Prediction":
        """A `MakePrediction` for graphs without outputs but the logits."""
        return cls(fetch)

    @cached_property
    def logits(self) -> Logits:
        """float32 [V]. On a GPU they may be copied to the host only when they are first read."""
        return self._fetch()

    @property
    def likeliest(self) -> int:
        """The likeliest token; of equal ones the lowest."""
        return int(self.logits.argmax())

    @property
    def is_finite(self) -> bool:
        """Whether a token can be chosen: some logit is finite, and none is NaN or +inf."""
        logits = self.logits
        return bool(np.isfinite(logits[np.argmax(logits)]))  # argmax finds a NaN before any number

    def choices(self, params: Sampled) -> Choices | None:
        """The tokens that may come next; None where only the logits say."""
        return None

    def copy(self) -> "Prediction":
        """The same in memory of its own, which later runs do not change."""
        logits = self.logits.copy()
        return Prediction(lambda: logits)


MakePrediction = Callable[[FetchLogits, HostArrays, tuple[int, ...]], Prediction]
"""Makes a prediction of the arrays of a graph that was run, and the place in them: a batch slot's
row, and in a step of several tokens the token's number."""

FIRST = np.zeros(1, np.int64)
"""The row of a graph's only prediction."""

_OF_SEVERAL = 3
"""Dimensions of the logits of a step of several tokens."""


class BoundGraph:
    """A graph and its buffers: write `arrays`, `run`, read `arrays`.

    arrays: the host's side of every input and output that has one. predict: makes predictions of
    its outputs.
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
        method = table.method_of_likeliest(outputs)
        read = method.likeliest if method and method.likeliest else {names.LOGITS} & outputs
        self._read = {name: buffers[name] for name in read}
        self.predict: MakePrediction = method.part("run").predict if method else Prediction.of
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


def load_weights(build: Build, graphs: Iterable[GraphName], memory: Memory) -> Buffers:
    """The weights that these graphs take as inputs, by name. Raises UserError."""
    return {
        spec.name: memory.load(spec, np.memmap(span.file, np.uint8, "r", span.offset, span.nbytes))
        for spec, span in build.shared_weights(graphs)
    }


class Predictions:
    """The predictions of a graph's latest run: by batch slot, or all logits at once."""

    def __init__(self, graph: BoundGraph, rows: Integers) -> None:
        """rows: of the graph's outputs, the row of each batch slot."""
        self._graph = graph
        self._rows = rows

    def __getitem__(self, slot: int) -> Prediction:
        (only,) = self.of_tokens(slot)
        return only

    def of_tokens(self, slot: int) -> list[Prediction]:
        """One for each token of a batch slot's step."""
        assert 0 <= slot < len(self._rows), f"slot {slot} was not run"
        logits, row = self._graph.arrays[names.LOGITS], int(self._rows[slot])
        places: Iterable[tuple[int, ...]] = [(row,)]
        if logits.ndim == _OF_SEVERAL:
            places = ((row, token) for token in range(logits.shape[1]))
        return [
            self._graph.predict(partial(self._logits, *place), self._graph.arrays, place)
            for place in places
        ]

    @property
    def logits(self) -> Logits:
        """float32 [slots, V], or [slots, C, V] of a step of several tokens."""
        rows = self._rows
        logits: Logits = self._graph.rows(names.LOGITS, 0, int(rows.max()) + 1)
        is_in_order = np.array_equal(rows, np.arange(len(logits)))
        return logits if is_in_order else logits[rows]

    def _logits(self, row: int, *token: int) -> Logits:
        logits: Logits = self._graph.rows(names.LOGITS, row, row + 1)[0]
        return logits[token] if token else logits
