"""Runs a build's graphs with OpenVINO (a `GraphBackend`): on a CPU, a GPU or an NPU of Intel's.

Prompts run in OpenVINO, and steps in whichever of OpenVINO and ONNX Runtime is faster. Both round
activations to 8 bits where weights are integers, and read the same buffers. On two cores a step of
one row of SmolLM2-135M in int8 took ONNX Runtime 18 ms, and OpenVINO 28; in int4 with 16 rows
OpenVINO was faster, in int8 level. They round differently: so one of them takes all steps of a
build, and neither neighbours nor drafts change what is written.

Caches are in the host's memory. Knows no batch slot and no cache policy.
"""

import ctypes
import logging
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import REBUILD, GraphEntry, GraphName
from snapexport.errors import UserError, first_line, needs_extra
from snapexport.runtime.engine.backend import (
    Buffer,
    Buffers,
    GraphBackend,
    GraphError,
    HostMemory,
    Work,
    require_threads,
)
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.open_executor import PRECISIONS

with needs_extra("openvino"):
    import openvino as ov

    from snapexport.runtime.engine.graph_file import MappedWeights
    from snapexport.runtime.openvino.reading import Read, read_graph

LOG = logging.getLogger("snapexport.openvino")
LOG.addHandler(logging.NullHandler())  # or Python prints warnings on stderr

_CAPABILITIES = {"bf16": "BF16", "f16": "FP16"}
"""OpenVINO's names of what a device calculates in, beside f32."""


@cache
def core() -> Any:
    """One for the process.

    Its CPU plugin gives the thread a stack for signal handlers. Plugins that end in another order
    than they began leave the thread a freed one, and the next signal crashes (2026.4).
    """
    return ov.Core()


class OpenVinoBackend:
    """The compiled graphs of a graph set, compiled as they are bound."""

    binds_rows = True

    def __init__(
        self,
        build: Build,
        graphs: GraphSet,
        threads: int | None = None,
        device: str | None = None,
        precision: str | None = None,
    ) -> None:
        """device: None for the CPU. precision: None for f32. Raises UserError.

        `Build.require_run` was asked whether OpenVINO can run the build.
        """
        require_threads(threads)
        self.memory = HostMemory()
        self._build = build
        self._device, self._precision = device or "CPU", precision or "f32"
        _require(self._device, self._precision)
        self._settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            self._settings["INFERENCE_NUM_THREADS"] = threads
        self._weights = MappedWeights()
        self._compiled: dict[GraphName, tuple[Read, Any]] = {}

    def bind(self, graph: GraphName, buffers: Buffers) -> Work:
        """Compile the graph, once, and tie it to the buffers. Raises UserError."""
        if graph not in self._compiled:
            self._compiled[graph] = self._compile(graph)
        read, compiled = self._compiled[graph]
        entry = self._build.manifest.graphs[graph]
        work = _bind(compiled.create_infer_request(), read, entry, buffers)

        def run() -> None:
            try:
                work()
            except Exception as error:  # OpenVINO's exceptions share no narrower public base
                raise GraphError(
                    f"OpenVINO failed while it ran {entry.file}: {first_line(error)}", REBUILD
                ) from error

        return run

    def capture(self, graph: GraphName, work: Work) -> Work | None:
        """Nothing is captured."""
        return None

    def close(self) -> None:
        """Let go of the graphs, and with them of their weights."""
        self._compiled.clear()
        self._weights = MappedWeights()

    def _compile(self, graph: GraphName) -> tuple[Read, Any]:
        path, entry = self._build.graph(graph), self._build.manifest.graphs[graph]
        model, read = read_graph(path, entry, self._weights, dynamic=self._device == "CPU")
        # A vote compares sums of many scores: rounded ones would keep other positions.
        precision = "f32" if graph == "compress" else self._precision
        settings = self._settings | {"INFERENCE_PRECISION_HINT": precision}
        try:
            compiled = core().compile_model(model, self._device, settings)
        except Exception as error:  # OpenVINO's exceptions share no narrower public base
            raise UserError(
                f"OpenVINO cannot compile {path} for {self._device}: {first_line(error)}",
                "use --device CPU, or --backend onnxruntime",
            ) from error
        self._weights.leave_to_the_disk()  # OpenVINO has rearranged them
        LOG.info("%s runs on %s in %s", entry.file, self._device, precision)
        return read, compiled


def _require(device: str, precision: str) -> None:
    """Raise UserError for what this machine lacks."""
    found = sorted({name.partition(".")[0] for name in core().available_devices})
    if device not in found:
        raise UserError(
            f"OpenVINO finds no {device} on this machine",
            f"use --device {found[0]}" if found else "see OpenVINO's system requirements",
        )
    if precision not in PRECISIONS:
        raise UserError(
            f"OpenVINO has no precision '{precision}'", f"choose from {', '.join(PRECISIONS)}"
        )
    able = core().get_property(device, "OPTIMIZATION_CAPABILITIES")
    if precision in _CAPABILITIES and _CAPABILITIES[precision] not in able:
        raise UserError(
            f"this {device} does not calculate in {precision}",
            "leave --precision out: it calculates in f32",
        )


def _bind(request: Any, read: "Read", entry: GraphEntry, buffers: Buffers) -> Work:
    """Return what runs a request over buffers, and then writes what is new into the caches.

    Nothing is allocated after that.
    """
    arrays = {spec.name: _array(buffers[spec.name]) for spec in (*entry.inputs, *entry.outputs)}
    for name in read.inputs:
        request.set_tensor(name, ov.Tensor(arrays[name], shared_memory=True))
    taken = {arrays[spec.name].ctypes.data for spec in entry.inputs}
    outputs, after = [], []
    for number, (output, (shape, dtype)) in enumerate(read.outputs):
        array = arrays[output] if output else np.zeros(shape, dtype)
        # OpenVINO may write an output before it has read all inputs.
        if array.ctypes.data in taken:
            target, array = array, np.zeros(shape, dtype)
            after.append(_copy(target, array))
        request.set_output_tensor(number, ov.Tensor(array, shared_memory=True))
        outputs.append(array)
    heads = [
        (number, head, arrays[start])
        for name, (numbers, start) in read.prefixes.items()
        for number, head in zip(numbers, arrays[name][0], strict=True)
    ]
    for present, write in read.writes.items():
        after.append(_write(arrays[present], outputs[write.states], outputs[write.start]))

    def run() -> None:
        for number, head, start in heads:
            request.set_input_tensor(number, ov.Tensor(head[: start[0]], shared_memory=True))
        request.start_async()
        request.wait()
        for work in after:
            work()

    return run


def _copy(target: NDArray[Any], source: NDArray[Any]) -> Work:
    def copy() -> None:
        target[...] = source

    return copy


def _write(cache: NDArray[Any], states: NDArray[Any], start: NDArray[Any]) -> Work:
    """Write each row's new states into its cache [B,H,S,D]."""
    rows, count = range(len(cache)), states.shape[2]

    def write() -> None:
        for row in rows:
            first = start[row]
            cache[row, :, first : first + count] = states[row]

    return write


def _array(buffer: Buffer) -> NDArray[Any]:
    """A buffer's memory. A loaded weight has an address and no array."""
    if buffer.array is not None:
        return buffer.array
    raw = (ctypes.c_uint8 * buffer.nbytes).from_address(buffer.address)
    flat = np.ctypeslib.as_array(raw)
    return flat.view(np.dtype(buffer.dtype)).reshape(buffer.shape)


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
    """Make an `OpenVinoBackend`, but for steps that ONNX Runtime takes faster. Raises UserError."""
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
