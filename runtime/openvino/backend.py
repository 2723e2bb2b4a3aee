"""Runs a build's graphs with OpenVINO (a `GraphBackend`): on a CPU, a GPU or an NPU of Intel's.

Caches lie in the host's memory. Knows no batch slot and no cache policy.
"""

import logging
from functools import cache
from typing import Any

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import REBUILD, GraphName
from snapexport.errors import UserError, first_line, needs_extra
from snapexport.runtime.engine.backend import Buffers, GraphError, Work, require_threads
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.host_memory import HostMemory
from snapexport.runtime.engine.openvino_options import PRECISIONS

with needs_extra("openvino"):
    import openvino as ov

    from snapexport.runtime.openvino.binding import bind
    from snapexport.runtime.openvino.reading import Read, read_graph
    from snapexport.runtime.openvino.weights import MappedWeights

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
        work = bind(compiled.create_infer_request(), read, entry, buffers)

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
