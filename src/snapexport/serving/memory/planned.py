"""Bounds the memory of serving a build that is not made yet, as that of one which is."""

from collections.abc import Mapping
from math import prod
from pathlib import Path

from snapexport.builder import BuildOptions
from snapexport.builder.plan.alternatives import Alternative
from snapexport.builder.plan.footprint import planned_manifest
from snapexport.builder.plan.model import PlannedModel
from snapexport.builder.plan.weights import stored_bytes
from snapexport.contract.build_directory import Build, graph_specs
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.graph_specs import Specs
from snapexport.contract.manifest import GraphEntry, Manifest, TensorSpec, WeightFile
from snapexport.runtime.engine.open_executor import BackendName
from snapexport.serving.memory.bound import ServerMemory
from snapexport.serving.memory.parts import MemoryBound
from snapexport.serving.options import ServeOptions

_BACKENDS: Mapping[str, BackendName] = {
    "onnxruntime": "onnxruntime",
    "portable": "onnxruntime",
    "openvino": "openvino",
}
"""The backend that serves a target's builds on a CPU."""


def planned_bound(alternative: Alternative, batch: int) -> MemoryBound | None:
    """The least `--memory` that serves a planned build with the usual queue; None: not on a CPU."""
    options = alternative.options(batch)
    backend = _BACKENDS.get(options.target)
    if backend is None or options.tensor_parallel > 1:
        return None
    model = alternative.model
    manifest = planned_manifest(
        model.facts, options, alternative.geometry, alternative.chunk, batch
    )
    whole = _with_graphs(manifest, options, model)
    folder = Path(str(options.model))
    server = ServerMemory(Build(folder, whole), ServeOptions(Path("build"), backend=backend))
    usual = [queue for queue in server.queues() if queue.max_pending == ServeOptions.max_pending]
    return server.with_queue(usual[-1])


def _with_graphs(manifest: Manifest, options: BuildOptions, model: PlannedModel) -> Manifest:
    graphs = {}
    for name, given, made in graph_specs(manifest):
        kind = graph_of(name).kind
        sizes = options.smaller_batches if kind.sized_by == "batch" else ()
        for each in (name, *(f"{name}.{size}" for size in sizes)):
            graphs[each] = GraphEntry(
                file=f"{each}.onnx", sha256="", inputs=_list(given), outputs=_list(made)
            )
    stored = stored_bytes(model, options)
    weights = [WeightFile(file="weights/all", size=stored, header_sha256="", sha256=None)]
    elements = sum(map(prod, model.linear)) + (0 if model.tied else model.embedding)
    bits = 8 * stored / elements
    return manifest.model_copy(
        update={"graphs": graphs, "weights": weights, "bits_per_weight": bits}
    )


def _list(specs: Specs) -> list[TensorSpec]:
    return [
        TensorSpec(name=name, dtype=dtype, shape=[*shape]) for name, (dtype, shape) in specs.items()
    ]
