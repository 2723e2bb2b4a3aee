"""Opens a build with a backend: ONNX Runtime, OpenVINO, or TensorRT."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import DeviceError, GraphBackend
from snapexport.runtime.engine.bound_graph import load_weights
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import GraphSet, PrefillForm, Role
from snapexport.runtime.engine.prompt_cache import PromptCache

Device = Literal["CPU", "GPU", "NPU"]
DEVICES: tuple[Device, ...] = get_args(Device)
Precision = Literal["f32", "bf16", "f16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


BackendName = Literal["onnxruntime", "onnxruntime-cuda", "openvino", "tensorrt"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)

MAKERS = {
    "onnxruntime": ("snapexport.runtime.ort.backend", "OnnxRuntimeBackend"),
    "onnxruntime-cuda": ("snapexport.runtime.ort.backend", "cuda_backend"),
    "openvino": ("snapexport.runtime.openvino.backend", "openvino_backend"),
    "tensorrt": ("snapexport.runtime.trt.backend", "TensorRtBackend"),
    "ranks": ("snapexport.runtime.ranks.processes", "open_ranks"),
}
"""What makes each backend, and the executor of several ranks: a module, and its function. The
runtime knows them as a `GraphBackend` and an `Executor`."""


def open_executor(
    build: Build,
    *,
    backend: BackendName | None = None,
    baseline: bool = False,
    threads: int | None = None,
    prepack: bool = False,
    prompt_cache: PromptCache | None = None,
    prefill: PrefillForm = "chunks",
    role: Role = "both",
    speculates: bool = True,
    device: Device | None = None,
    precision: Precision | None = None,
    make: Callable[[str], Callable[..., Any]] | None = None,
) -> Executor:
    """Load a build. Raises UserError.

    backend: None takes TensorRT where the build has engines, and ONNX Runtime on the CPU elsewhere.
    A build whose engines can't run here (another GPU, another version, no driver) is refused: the
    CPU may take a hundred times as long, and is used only if it is named.
    baseline: run the uncompressed graphs. threads, prepack (a second copy of the weights, for
    faster decoding of all batch slots): only for the CPU. prompt_cache: another executor's of the
    same model on the same backend, so that both prefill a common prompt once. prefill: how prompts
    are taken; "blocks" and "both" need a graph that extends rows. role: "prefill" loads no decode
    graph, "decode" no other one. speculates: load the graphs that draft tokens, where they can.
    device, precision: only for OpenVINO; None for the CPU, and for f32. make: finds what makes a
    backend, in place of `maker_of`.
    """
    if backend not in (None, *BACKENDS):
        raise UserError(f"no backend '{backend}'", f"choose from {', '.join(BACKENDS)}")
    chosen = backend or default_backend(build)
    make = make or maker_of
    build.require_run(
        backend=chosen,
        baseline=baseline,
        threads=threads,
        prepack=prepack,
        shares_prompt_cache=prompt_cache is not None,
        prefill=prefill,
        role=role,
        device=device,
        precision=precision,
    )
    if build.manifest.tensor_parallel > 1:
        ranks: Executor = maker_of("ranks")(
            build, threads=threads, prepack=prepack, prefill=prefill
        )
        return ranks
    graphs = GraphSet.of(build, baseline=baseline, form=prefill, role=role, speculates=speculates)
    settings: dict[str, object] = {}
    if chosen == "onnxruntime":
        settings = {"threads": threads, "prepack": prepack}
    elif chosen == "openvino":
        settings = {"threads": threads, "device": device, "precision": precision}
    try:
        return _load(build, graphs, prompt_cache, make(chosen), settings)
    except UserError as refusal:
        if backend is not None or chosen == "onnxruntime":
            raise
        way_out = f"{refusal.hint}; or run its graphs on the CPU: --backend onnxruntime"
        raise UserError(refusal.message, way_out) from refusal


def default_backend(build: Build) -> BackendName:
    """Return the backend of a build for which the caller names none."""
    return "tensorrt" if build.manifest.engines else "onnxruntime"


def _load(
    build: Build,
    graphs: GraphSet,
    prompt_cache: PromptCache | None,
    make: Callable[..., GraphBackend],
    settings: Mapping[str, object],
) -> Executor:
    """settings: the backend's. Raises UserError."""
    try:
        backend = make(build, graphs, **settings)
        weights = load_weights(build, graphs.names, backend.memory)
        return Executor(build.manifest, graphs, backend, weights, prompt_cache)
    except MemoryError:
        raise UserError(
            f"the caches of {build.directory} don't fit into memory",
            "see `snapexport inspect`, and build it again with a smaller --batch or --L-max",
        ) from None
    except DeviceError as error:
        raise UserError(
            f"the GPU failed while the build was loaded: {error}",
            "see what else runs on it: `nvidia-smi`",
        ) from error


def maker_of(name: str) -> Callable[..., Any]:
    """The maker that `MAKERS` names. Its module is imported now: it may need a GPU's libraries."""
    module, function = MAKERS[name]
    made: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return made
