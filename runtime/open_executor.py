"""Which library runs a build: ONNX Runtime on the CPU or on a GPU, or TensorRT on a GPU."""

from typing import Literal, get_args

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.cuda_device import DeviceError
from snapexport.runtime.executor import Executor

BackendName = Literal["onnxruntime", "onnxruntime-cuda", "tensorrt"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)

_SPELLED: dict[BackendName, str] = {"onnxruntime-cuda": "a GPU", "tensorrt": "TensorRT"}


def open_executor(
    build: Build,
    *,
    backend: BackendName | None = None,
    baseline: bool = False,
    threads: int | None = None,
    prepack: bool = False,
) -> Executor:
    """Load a build. Raises UserError.

    backend: None takes TensorRT where the build has engines, since they were made to be run, and
    ONNX Runtime where it has none: it runs every target's graphs. A build whose engines can't run
    here (another GPU, another version, no driver) is refused and not run on the CPU in silence,
    which could take a hundred times as long; the CPU has to be asked for. ONNX Runtime's CUDA
    provider is taken where it is asked for. threads and prepack are the CPU's.
    """
    if backend not in (None, *BACKENDS):
        raise UserError(f"no backend '{backend}'", f"choose from {', '.join(BACKENDS)}")
    chosen = backend or default_backend(build)
    if chosen == "onnxruntime":
        from snapexport.runtime.onnxruntime_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(build, baseline, threads, prepack)
    if threads is not None or prepack:
        raise UserError(
            f"threads and prepacked weights are the CPU's, and {_SPELLED[chosen]} runs this build",
            "leave them out, or choose --backend onnxruntime",
        )
    try:
        return _on_gpu(build, baseline, chosen)
    except UserError as refusal:
        if backend is not None:
            raise
        way_out = f"{refusal.hint}; or run its graphs on the CPU: --backend onnxruntime"
        raise UserError(refusal.message, way_out) from refusal


def _on_gpu(build: Build, baseline: bool, backend: BackendName) -> Executor:
    try:
        return (_tensorrt if backend == "tensorrt" else _cuda)(build, baseline)
    except DeviceError as error:
        raise UserError(
            f"the GPU failed while the build was loaded: {error}",
            "see what else runs on it: `nvidia-smi`",
        ) from error


def _tensorrt(build: Build, baseline: bool) -> Executor:
    from snapexport.runtime.tensorrt_engine import TrtEngine

    return TrtEngine(build, baseline)


def _cuda(build: Build, baseline: bool) -> Executor:
    from snapexport.runtime.onnxruntime_gpu import Gpu

    # First: without any ONNX Runtime the engine's import names the CPU's, which is the wrong one.
    device = Gpu()
    from snapexport.runtime.onnxruntime_engine import OnnxRuntimeEngine

    return OnnxRuntimeEngine(build, baseline, device=device)


def default_backend(build: Build) -> BackendName:
    """What runs a build that nobody chose a backend for."""
    return "tensorrt" if build.manifest.engines else "onnxruntime"
