"""Builds engines from the graphs of a build, by TensorRT or by TensorRT for RTX.

    parse graph -> build engine -> load it once -> record it in the manifest

TensorRT builds on the GPU that runs the engine. TensorRT for RTX builds ahead of time on any
machine, and such an engine is not loaded here. Importing this package imports neither library; only
the modules `tensorrt_*` do.
"""

from snapexport.builder.engines.options import EngineOptions
from snapexport.builder.progress import Progress, Silent
from snapexport.contract import tensorrt_bindings
from snapexport.contract.build_directory import Build
from snapexport.contract.tensorrt_bindings import library_of

__all__ = ["EngineOptions", "Progress", "build_engines"]


def build_engines(build: Build, options: EngineOptions, progress: Progress | None = None) -> str:
    """Build engines and record them. Returns their name in the manifest.

    Finished engines stay if a later graph fails. Raises UserError.
    """
    library = library_of(build)
    options.require_supported(library)
    tensorrt_bindings.use(library)
    from snapexport.builder.engines.tensorrt_build import build_all

    return build_all(build, library, options, progress or Silent())
