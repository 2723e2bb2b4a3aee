"""Runs a build's graphs with ONNX Runtime (a `GraphBackend`), on the CPU or on a GPU.

A graph of a rank is cut at its collectives: it has a session for each segment, and ranks meet
between them. Knows no batch slot and no transport. The device decides where buffers are.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import PackedGraphs
from snapexport.contract.manifest import GraphEntry, GraphName, TensorSpec
from snapexport.runtime.engine.backend import Buffer, Buffers, Collectives, Memory, Work
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.ort.devices import Cpu, Cuda, Device
from snapexport.runtime.ort.session import Session, version
from snapexport.runtime.ort.shared_weights import SharedWeights

_HEAVY = frozenset(
    "Attention AveragePool FusedMatMul GatherND GroupQueryAttention MatMul MatMulNBits "
    "RMSNormalization RotaryEmbedding Softmax TensorScatter TopK".split()
)
"""Operators of caches, weights and hidden states: on the CPU they cost a copy there and back."""


class Segments:
    """The sessions of one graph's segments."""

    captured = False

    def __init__(
        self, sessions: Sequence[Session], collectives: Collectives, memory: Memory
    ) -> None:
        self._sessions, self._collectives = sessions, collectives
        entries = [session.entry for session in sessions]
        self._between = _allocate(entries, memory, collectives.ranks)

    def bind(self, buffers: Buffers) -> Work:
        """Tie each segment's inputs and outputs to buffers: the graph's, and those between."""
        every = self._between | buffers
        works: list[Work] = []
        for session in self._sessions:
            works.append(session.bind(every))
            works += [self._exchange(spec.name, every) for spec in _exchanges_of(session.entry)]

        def run() -> None:
            for work in works:
                work()

        return run

    def operators(self) -> dict[str, dict[str, int]]:
        """Count the nodes of each operator that each execution provider runs."""
        found: dict[str, dict[str, int]] = {}
        for session in self._sessions:
            for provider, counts in session.operators().items():
                total = found.setdefault(provider, {})
                for name, count in counts.items():
                    total[name] = total.get(name, 0) + count
        return found

    def _exchange(self, name: str, buffers: Buffers) -> Work:
        part = buffers[name].host
        if names.is_reduced(name):
            return lambda: self._collectives.all_reduce(part)
        if names.is_exchanged(name):
            return lambda: self._collectives.all_to_all(part)
        every = buffers[str(names.gathered_of(name))].host
        return lambda: self._collectives.all_gather(part, every)


def _exchanges_of(entry: GraphEntry) -> list[TensorSpec]:
    """The outputs of a segment that all ranks exchange, in their order."""
    return [spec for spec in entry.outputs if _is_exchanged(spec.name)]


def _is_exchanged(name: str) -> bool:
    in_place = names.is_reduced(name) or names.is_exchanged(name)
    return in_place or names.gathered_of(name) is not None


def _allocate(entries: Sequence[GraphEntry], memory: Memory, ranks: int) -> Buffers:
    """A buffer for each tensor between segments. One that nobody reads any more is used again."""
    last = {spec.name: at for at, entry in enumerate(entries) for spec in entry.inputs}
    buffers: Buffers = {}
    free: dict[tuple[str, tuple[int, ...]], list[Buffer]] = {}

    def take(spec: TensorSpec) -> None:
        idle = free.get((spec.dtype, tuple(spec.shape)))
        buffers[spec.name] = idle.pop() if idle else memory.allocate(spec)

    for at, entry in enumerate(entries):
        for spec in entry.outputs:
            if names.is_between(spec.name):
                take(spec)
            if gathered := names.gathered_of(spec.name):
                rows, *others = spec.shape
                take(TensorSpec(name=gathered, dtype=spec.dtype, shape=[ranks * rows, *others]))
        for name in [name for name in buffers if last.get(name, at) == at]:
            one = buffers[name]
            free.setdefault((one.dtype, one.shape), []).append(one)
            last[name] = -1
    return buffers


class OnnxRuntimeBackend:
    """The sessions of a graph set, opened as they are bound."""

    binds_rows = True

    def __init__(
        self,
        build: Build,
        graphs: GraphSet,
        device: Device | None = None,
        threads: int | None = None,
        prepack: bool = False,
        captures: bool = True,
        collectives: Collectives | None = None,
    ) -> None:
        """device: None for the CPU. It can run the build: `Build.require_run` was asked.

        prepack: a second copy of the weights, for faster decoding of all
        batch slots. captures: False leaves out CUDA graphs. collectives: for a rank's build.
        """
        self._device = device or Cpu()
        self.memory = self._device.memory
        self._build, self._graphs, self._threads = build, graphs, threads
        self._prepack, self._captures = prepack, captures and self._device.captures
        self._collectives = collectives
        self._packed = PackedGraphs.of(build.directory)
        self._sessions: dict[GraphName, Session | Segments] = {}
        files = (build.directory / weights.file for weights in build.manifest.weights)
        self._weights = SharedWeights([*files]) if self._device.name == "cpu" else None

    def bind(self, graph: GraphName, buffers: Buffers) -> Work:
        """Open the graph's session, once, and tie it to the buffers. Raises UserError."""
        if graph not in self._sessions:
            self._sessions[graph] = self._open(graph)
        return self._sessions[graph].bind(buffers)

    def capture(self, graph: GraphName, work: Work) -> Work | None:
        """Sessions are captured by their first run, or not at all."""
        if not self._sessions[graph].captured:
            return None
        work()
        return work

    def close(self) -> None:
        """Close the sessions, then free a GPU's memory and its stream."""
        self._sessions.clear()
        self._weights = None
        self._device.close()

    def operators(self) -> dict[GraphName, dict[str, dict[str, int]]]:
        """Count nodes by graph, execution provider and operator.

        On a GPU, the CPU provider runs operators without a CUDA kernel, and shape arithmetic.
        """
        return {name: session.operators() for name, session in self._sessions.items()}

    def _open(self, graph: GraphName) -> Session | Segments:
        manifest, sizes = self._build.manifest, self._graphs.decode
        # Integers have to be rearranged: as they are stored, products take 50 times as long.
        prepack = manifest.holds_integers or (self._prepack and graph == sizes[manifest.batch])
        settings = self._device, self._threads, prepack and graph != "compress"
        if self._collectives and graph in manifest.segments:
            sessions = [
                Session(self._build.directory / entry.file, entry, *settings)
                for entry in manifest.segments[graph]
            ]
            return Segments(sessions, self._collectives, self.memory)
        packed = self._packed_file(graph)
        session = Session(
            packed or self._build.graph(graph),
            manifest.graphs[graph],
            *(self._device, self._threads, True) if packed else settings,
            self._captures and graph in sizes.values(),
            None if packed else self._weights,
        )
        if self._weights:
            self._weights.leave_to_the_disk()
        if self._device.name == "cuda":
            _warn_of_the_cpu(graph, session)
        return session

    def _packed_file(self, graph: GraphName) -> Path | None:
        """The graph with weights that were rearranged on the disk, where there is one."""
        if self._packed is None or self._device.name != "cpu":
            return None
        source = self._build.manifest.graphs[graph].sha256
        return self._packed.file(self._build.directory, graph, source, version())


def _warn_of_the_cpu(graph: GraphName, session: Session) -> None:
    ran = session.operators().get("CPUExecutionProvider", {})
    if heavy := sorted(_HEAVY & ran.keys()):
        warnings.warn(
            f"the CPU runs {', '.join(heavy)} of {graph}: this ONNX Runtime has no CUDA "
            "kernel for them, and each run copies what they read and write",
            RuntimeWarning,
            3,
        )


def cuda_backend(build: Build, graphs: GraphSet, device: Cuda | None = None) -> OnnxRuntimeBackend:
    """ONNX Runtime on the GPU. Raises UserError.

    device: other backends', too. Nothing is captured then: graphs are bound several times.
    """
    return OnnxRuntimeBackend(build, graphs, device or Cuda(), captures=device is None)
