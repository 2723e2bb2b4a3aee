"""Which library runs a build: ONNX Runtime on the CPU or on a GPU, or TensorRT on a GPU."""

from typing import Literal, get_args

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.cuda_device import DeviceError
from snapexport.runtime.engine import Engine

Runner = Literal["onnxruntime", "onnxruntime-cuda", "tensorrt"]
RUNNERS: tuple[Runner, ...] = get_args(Runner)

_SPELLED: dict[Runner, str] = {"onnxruntime-cuda": "a GPU", "tensorrt": "TensorRT"}


def open_engine(
    build: Build,
    *,
    runner: Runner | None = None,
    baseline: bool = False,
    threads: int | None = None,
    prepack: bool = False,
) -> Engine:
    """Load a build. Raises UserError.

    runner: None takes TensorRT where the build has engines, since they were made to be run, and
    ONNX Runtime where it has none: it runs every target's graphs. A build whose engines can't run
    here (another GPU, another version, no driver) is refused and not run on the CPU in silence,
    which could take a hundred times as long; the CPU has to be asked for. ONNX Runtime's CUDA
    provider is taken where it is asked for. threads and prepack are the CPU's.
    """
    if runner not in (None, *RUNNERS):
        raise UserError(f"no runner '{runner}'", f"choose from {', '.join(RUNNERS)}")
    chosen = runner or default_runner(build)
    if chosen == "onnxruntime":
        from snapexport.runtime.onnxruntime_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(build, baseline, threads, prepack)
    if threads is not None or prepack:
        raise UserError(
            f"threads and prepacked weights are the CPU's, and {_SPELLED[chosen]} runs this build",
            "leave them out, or choose --runner onnxruntime",
        )
    try:
        return _on_gpu(build, baseline, chosen)
    except UserError as refusal:
        if runner is not None:
            raise
        way_out = f"{refusal.hint}; or run its graphs on the CPU: --runner onnxruntime"
        raise UserError(refusal.message, way_out) from refusal


def _on_gpu(build: Build, baseline: bool, runner: Runner) -> Engine:
    try:
        return (_tensorrt if runner == "tensorrt" else _cuda)(build, baseline)
    except DeviceError as error:
        raise UserError(
            f"the GPU failed while the build was loaded: {error}",
            "see what else runs on it: `nvidia-smi`",
        ) from error


def _tensorrt(build: Build, baseline: bool) -> Engine:
    from snapexport.runtime.tensorrt_engine import TrtEngine

    return TrtEngine(build, baseline)


def _cuda(build: Build, baseline: bool) -> Engine:
    from snapexport.runtime.onnxruntime_gpu import Gpu

    # First: without any ONNX Runtime the engine's import names the CPU's, which is the wrong one.
    device = Gpu()
    from snapexport.runtime.onnxruntime_engine import OnnxRuntimeEngine

    return OnnxRuntimeEngine(build, baseline, device=device)


def default_runner(build: Build) -> Runner:
    """What runs a build that nobody chose a runner for."""
    return "tensorrt" if build.manifest.engines else "onnxruntime"
