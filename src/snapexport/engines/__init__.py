"""Builds TensorRT engines from the graphs of a build.

    parse graph -> build engine on this GPU -> load it once -> record it in the manifest

Importing this package does not import TensorRT; only the modules `tensorrt_*` do.
"""

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, first_line, needs_extra
from snapexport.contract.targets import capabilities
from snapexport.engines.options import EngineOptions
from snapexport.engines.progress import Progress, Silent

__all__ = ["EngineOptions", "Progress", "build_engines", "require_target"]


def build_engines(build: Build, options: EngineOptions, progress: Progress | None = None) -> str:
    """Build engines for the present GPU and record them. Returns their name in the manifest.

    Finished engines stay if a later graph fails. Raises UserError.
    """
    require_target(build)
    with needs_extra("tensorrt"):
        try:
            from snapexport.engines.tensorrt_build import build_all
        except ModuleNotFoundError:
            raise
        except ImportError as error:
            raise UserError(
                f"TensorRT does not load: {first_line(error)}",
                "its bindings are installed without its libraries, or with those of another "
                "version: pip install 'snapexport[tensorrt]'",
            ) from error
    return build_all(build, options, progress or Silent())


def require_target(build: Build) -> None:
    """Raise UserError for a build whose graphs TensorRT's parser does not take."""
    if not capabilities(build.manifest.target).compiled:
        raise UserError(
            f"{build.directory} was built for {build.manifest.target}, not for TensorRT",
            "build it again with --target tensorrt",
        )
