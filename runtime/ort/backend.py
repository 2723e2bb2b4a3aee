"""Runs a build's graphs with ONNX Runtime (a `GraphBackend`), on the CPU or on a GPU.

Knows no batch slot. Where buffers are is the device's.
"""

import warnings
from pathlib import Path

from snapexport.contract.build_directory import Build
from snapexport.contract.engines import PackedGraphs
from snapexport.contract.manifest import GraphName
from snapexport.runtime.engine.backend import Buffers, Work
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.ort.devices import Cpu, Device
from snapexport.runtime.ort.segments import Segments
from snapexport.runtime.ort.session import Session, version
from snapexport.runtime.ranks.collectives import Collectives

_HEAVY = frozenset(
    "Attention AveragePool FusedMatMul GatherND GroupQueryAttention MatMul MatMulNBits "
    "RMSNormalization RotaryEmbedding Softmax TensorScatter TopK".split()
)
"""Operators of caches, weights and hidden states: on the CPU they cost a copy there and back."""


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
            return Segments(
                self._build.directory,
                manifest.segments[graph],
                lambda path, entry: Session(path, entry, *settings),
                self._collectives,
                self.memory,
            )
        packed = self._packed_file(graph)
        session = Session(
            packed or self._build.graph(graph),
            manifest.graphs[graph],
            *(self._device, self._threads, True) if packed else settings,
            self._captures and graph in sizes.values(),
        )
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
