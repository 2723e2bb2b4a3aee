"""Runs a build's prompts with OpenVINO and its steps with the faster engine (a `GraphBackend`).

Both round activations to 8 bits where weights are integers, and read the same buffers. On two cores
a step of one row of SmolLM2-135M in int8 took ONNX Runtime 18 ms, and OpenVINO 28; in int4 with 16
rows OpenVINO was faster, in int8 level. They round differently: so one of them takes all steps of a
build, and neither neighbours nor drafts change what is written.
"""

import logging

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphName
from snapexport.runtime.engine.backend import Buffers, GraphBackend, Work
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.openvino.backend import OpenVinoBackend

LOG = logging.getLogger("snapexport.openvino")

_MOST_ROWS = 8
"""Batch slots up to which ONNX Runtime is faster, or as fast, for weights of few bits."""
_FEW_BITS = 8
"""Bits a weight from which it is so for any number of batch slots."""


def openvino_backend(
    build: Build,
    graphs: GraphSet,
    threads: int | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> GraphBackend:
    """As `OpenVinoBackend`, but for steps that ONNX Runtime takes faster. Raises UserError."""
    openvino = OpenVinoBackend(build, graphs, threads, device, precision)
    steps, manifest = {*graphs.decode.values(), *graphs.verify.values()}, build.manifest
    few_bits = (manifest.bits_per_weight or 0) < _FEW_BITS
    on_cpu = manifest.holds_integers and device in (None, "CPU")
    if not steps or not on_cpu or (few_bits and manifest.batch > _MOST_ROWS):
        return openvino
    from snapexport.runtime.ort.backend import OnnxRuntimeBackend

    LOG.info("steps run in ONNX Runtime, prompts in OpenVINO")
    return _Mixed(openvino, OnnxRuntimeBackend(build, graphs, threads=threads), steps)


class _Mixed:
    """Two backends of the host's memory. steps: the graphs of the second."""

    binds_rows = True

    def __init__(self, most: GraphBackend, other: GraphBackend, steps: set[GraphName]) -> None:
        self.memory = most.memory
        self._most, self._other, self._steps = most, other, steps

    def bind(self, graph: GraphName, buffers: Buffers) -> Work:
        return self._of(graph).bind(graph, buffers)

    def capture(self, graph: GraphName, work: Work) -> Work | None:
        return self._of(graph).capture(graph, work)

    def close(self) -> None:
        self._most.close()
        self._other.close()

    def _of(self, graph: GraphName) -> GraphBackend:
        return self._other if graph in self._steps else self._most
