"""Makes TensorRT's builder configuration from the options, and keeps its timing cache in a file.

The timing cache holds the times of kernels that earlier builds have measured.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snapexport.builder.engines.options import EngineOptions
from snapexport.contract.targets import EngineLibrary
from snapexport.contract.tensorrt_bindings import trt
from snapexport.errors import UserError
from snapexport.files.whole import write_whole

if TYPE_CHECKING:
    import tensorrt_rtx as rtx

_HARDWARE = {
    "none": trt.HardwareCompatibilityLevel.NONE,
    "ampere_plus": trt.HardwareCompatibilityLevel.AMPERE_PLUS,
    "same_compute_capability": trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY,
}


def make_config(
    builder: trt.Builder, options: EngineOptions, monitor: trt.IProgressMonitor
) -> trt.IBuilderConfig:
    """A configuration without its timing cache."""
    config = builder.create_builder_config()
    for flag in _flags(options):
        config.set_flag(flag)
    # TF32 is on by default, and would round the products of fp32 builds.
    config.clear_flag(trt.BuilderFlag.TF32)
    config.builder_optimization_level = options.optimization_level
    config.progress_monitor = monitor
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    if options.version_compatible and options.plugins is not None:
        config.plugins_to_serialize = [str(options.plugins.resolve())]
    return config


def set_hardware(config: trt.IBuilderConfig, options: EngineOptions) -> None:
    """Name the GPUs, besides the present one, that can run the engine."""
    config.hardware_compatibility_level = _HARDWARE[options.hardware]


def known_capabilities(library: EngineLibrary) -> list[str]:
    """The library's compute capabilities that its installed version has: 12.1 came with 1.6."""
    import tensorrt_rtx as rtx

    return [
        capability
        for capability in library.capabilities
        if hasattr(rtx.ComputeCapability, _sm(capability))
    ]


def set_compute_capabilities(config: "rtx.IBuilderConfig", wanted: Sequence[str]) -> None:
    """Name the GPUs that can run the engine, by compute capabilities such as "8.9".

    TensorRT has no such choice.
    """
    import tensorrt_rtx as rtx

    config.num_compute_capabilities = len(wanted)
    for index, capability in enumerate(wanted):
        config.set_compute_capability(getattr(rtx.ComputeCapability, _sm(capability)), index)


def _sm(capability: str) -> str:
    return "SM" + capability.replace(".", "")


def _flags(options: EngineOptions) -> list[trt.BuilderFlag]:
    """Builder flags. A stripped engine gets its original weights back (REFIT_IDENTICAL), which by
    TensorRT's documentation costs no speed. REFIT allows other weights of the same shapes."""
    flags = []
    if options.strip_weights:
        flags.append(trt.BuilderFlag.STRIP_PLAN)
    if options.refit:
        flags.append(trt.BuilderFlag.REFIT)
    elif options.strip_weights:
        flags.append(trt.BuilderFlag.REFIT_IDENTICAL)
    if options.version_compatible:
        flags.append(trt.BuilderFlag.VERSION_COMPATIBLE)
    return flags


def attach_timing_cache(config: trt.IBuilderConfig, path: Path, *, ours: bool) -> None:
    """Let `config` use and extend the timing cache at `path`.

    A cache of another GPU or TensorRT does not fit. The build's own (`ours`) is then replaced by an
    empty one; for the user's file this raises UserError.
    """
    if not path.is_file() or not _try_to_attach(config, path.read_bytes()):
        if path.is_file() and not ours:
            raise UserError(
                f"--timing-cache {path} is not of this GPU and TensorRT {trt.__version__}",
                "name a file that does not exist yet",
            )
        _try_to_attach(config, b"")


def _try_to_attach(config: trt.IBuilderConfig, content: bytes) -> bool:
    cache = config.create_timing_cache(content)
    return cache is not None and config.set_timing_cache(cache, ignore_mismatch=False)


def save_timing_cache(config: trt.IBuilderConfig, path: Path) -> None:
    """Write the timing cache of `config` to `path`, atomically."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    write_whole(path, memoryview(cache.serialize()))
