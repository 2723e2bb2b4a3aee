"""The options as TensorRT's builder configuration."""

import tensorrt as trt

from snapexport.engines.options import EngineOptions

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
    # On by default; it rounds the products of a build that was made in fp32 to be exact.
    config.clear_flag(trt.BuilderFlag.TF32)
    config.builder_optimization_level = options.optimization_level
    config.hardware_compatibility_level = _HARDWARE[options.hardware]
    config.progress_monitor = monitor
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    if options.version_compatible and options.plugins is not None:
        config.plugins_to_serialize = [str(options.plugins.resolve())]
    return config


def _flags(options: EngineOptions) -> list[trt.BuilderFlag]:
    """A stripped plan gets back the very weights that it was built with: REFIT_IDENTICAL, which
    TensorRT documents as costing no speed. REFIT is for other weights of the same shapes."""
    flags = []
    if options.strip_plan:
        flags.append(trt.BuilderFlag.STRIP_PLAN)
    if options.refit:
        flags.append(trt.BuilderFlag.REFIT)
    elif options.strip_plan:
        flags.append(trt.BuilderFlag.REFIT_IDENTICAL)
    if options.version_compatible:
        flags.append(trt.BuilderFlag.VERSION_COMPATIBLE)
    return flags
